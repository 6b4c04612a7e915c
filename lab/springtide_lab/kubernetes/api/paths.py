"""Pure. What a path of the API means: which kind, namespace, object and part of it. And which kinds there are now.

In: `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/PART`. Out: a `Target`, or 404.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.objects.kinds import BUILT_IN, NAMESPACES, Kind


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
