"""Pure. What a server says of itself: groups, versions, and the kinds of each with their parts and verbs.

In: the kinds that there are. Out: the answers to `/api`, `/apis`, `/apis/GROUP`, `/apis/GROUP/VERSION`, `/version`.
"""

from collections.abc import Sequence

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import ALL_VERBS, Kind

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
