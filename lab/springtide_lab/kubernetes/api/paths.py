"""Pure. Which kinds there are, what a path of the API means, and what the server says of itself (discovery).

In: `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/PART`. Out: a `Target`, or 404.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import ALL_VERBS, BUILT_IN, NAMESPACES, Kind

PART_VERBS = {
    "status": ("get", "patch", "update"),
    "resize": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "log": ("get",),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "finalize": ("update",),
}
PART_KINDS = {
    "binding": {"kind": "Binding"},
    "eviction": {"kind": "Eviction", "group": "policy", "version": "v1"},
    "token": {"kind": "TokenRequest", "group": "authentication.k8s.io", "version": "v1"},
}
REVIEWS = ("selfsubjectaccessreviews", "SelfSubjectAccessReview")
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0+springtide-testing", "platform": "linux/amd64"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about. No name: all objects of the kind; no namespace: of all namespaces."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)


class Registry:
    """The kinds that there are: those built in, and those that definitions made."""

    def __init__(self, kinds: Iterable[Kind] = BUILT_IN) -> None:
        self._kinds = {(each.group, each.version, each.plural): each for each in kinds}

    def define(self, kinds: Iterable[Kind]) -> None:
        self._kinds.update({(each.group, each.version, each.plural): each for each in kinds})

    def forget(self, group: str, plural: str) -> None:
        self._kinds = {key: each for key, each in self._kinds.items() if (key[0], key[2]) != (group, plural)}

    def all(self) -> list[Kind]:
        return [self._kinds[key] for key in sorted(self._kinds)]

    def find(self, group: str, version: str, plural: str) -> Kind:
        """One, or 404."""
        if (group, version, plural) not in self._kinds:
            raise status_errors.no_such_path()
        return self._kinds[group, version, plural]

    def of_resource(self, resource: str) -> Kind:
        """By its name among all: `pods`, `elasticjobs.springtide.dev`."""
        plural, _, group = resource.partition(".")
        return next(each for each in self._kinds.values() if (each.group, each.plural) == (group, plural))

    def target(self, path: str) -> Target:
        parts = [part for part in path.split("/") if part]
        if parts[:2] == ["api", "v1"]:
            group, version, rest = "", "v1", parts[2:]
        elif parts[:1] == ["apis"] and len(parts) >= 4:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise status_errors.no_such_path()
        if not rest:
            raise status_errors.no_such_path()
        whole = group == "" and rest[0] == "namespaces"
        if whole and (len(rest) <= 2 or (len(rest) == 3 and rest[2] in NAMESPACES.subresources)):
            return self._checked(Target(NAMESPACES, "", *rest[1:3]))
        if rest[0] == "namespaces" and len(rest) >= 3:
            kind = self.find(group, version, rest[2])
            if not kind.namespaced or len(rest) > 5:
                raise status_errors.no_such_path()
            return self._checked(Target(kind, rest[1], *rest[3:5]))
        kind = self.find(group, version, rest[0])
        if len(rest) > 3 or (kind.namespaced and len(rest) > 1):
            raise status_errors.no_such_path()
        return self._checked(Target(kind, "", *rest[1:3]))

    def _checked(self, target: Target) -> Target:
        if target.part and target.part not in target.kind.subresources:
            raise status_errors.no_such_path()
        return target


def answer(path: str, kinds: Sequence[Kind]) -> Json | None:
    """The answer to a path about the server; None: it is about objects."""
    parts = [part for part in path.split("/") if part]
    if parts == ["version"]:
        return dict(VERSION)
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["api", "v1"]:
        return _resources([each for each in kinds if each.group == ""], "v1")
    groups = {each.group: dict[str, None]() for each in kinds if each.group}
    groups.setdefault("authorization.k8s.io", {})["v1"] = None
    for each in kinds:
        if each.group:
            groups[each.group][each.version] = None
    if parts == ["apis"]:
        listed = [_group(name, list(versions)) for name, versions in sorted(groups.items())]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if len(parts) == 2 and parts[0] == "apis" and parts[1] in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], list(groups[parts[1]]))}
    if len(parts) == 3 and parts[0] == "apis" and parts[2] in groups.get(parts[1], {}):
        found = [each for each in kinds if (each.group, each.version) == (parts[1], parts[2])]
        return _resources(found, f"{parts[1]}/{parts[2]}")
    return None


def _group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[-1]}


def _resources(kinds: Sequence[Kind], group_version: str) -> Json:
    listed: list[Json] = []
    for kind in kinds:
        entry: Json = {
            "name": kind.plural,
            "singularName": kind.singular or kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(ALL_VERBS),
        }
        if kind.short:
            entry["shortNames"] = list(kind.short)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        listed.append(entry)
        for part in kind.subresources:
            listed.append(
                {
                    "name": f"{kind.plural}/{part}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.kind,
                    **PART_KINDS.get(part, {}),
                    "verbs": list(PART_VERBS[part]),
                }
            )
    if group_version == "authorization.k8s.io/v1":
        plural, kind_name = REVIEWS
        listed.append({"name": plural, "singularName": "", "namespaced": False, "kind": kind_name, "verbs": ["create"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}
