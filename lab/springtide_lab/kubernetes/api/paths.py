"""Pure. Register kinds, resolve paths of the API, and answer discovery requests.

In: `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/PART`. Out: a `Target`, or a refusal with 404.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import BUILT_IN, NAMESPACES, Kind

VERSION = {"gitVersion": "v1.34.0+springtide-testing"}


@dataclass(frozen=True, slots=True)
class Target:
    """Objects that a request addresses. An empty name means all objects, an empty namespace all namespaces."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)

    def takes(self, item: Json) -> bool:
        meta = item["metadata"]
        return self.namespace in ("", meta.get("namespace")) and self.name in ("", meta["name"])


class Registry:
    """Known kinds: built-in kinds and kinds of definitions."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self.define(BUILT_IN)

    def define(self, kinds: Iterable[Kind]) -> None:
        self._kinds.update({(kind.group, kind.version, kind.plural): kind for kind in kinds})

    def forget(self, group: str, plural: str) -> None:
        self._kinds = {key: kind for key, kind in self._kinds.items() if (key[0], key[2]) != (group, plural)}

    def of_resource(self, resource: str) -> Kind:
        """Return a kind by its full name, such as `pods` or `elasticjobs.springtide.dev`."""
        return next(kind for kind in self._kinds.values() if kind.resource == resource)

    def target(self, path: str) -> Target:
        group, version, *rest = self._split(path)
        if not rest:
            raise status_errors.no_such_path()
        whole = group == "" and rest[0] == "namespaces"
        if whole and (len(rest) <= 2 or (len(rest) == 3 and rest[2] in NAMESPACES.subresources)):
            return Target(NAMESPACES, "", *rest[1:3])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) >= 3:
            _, namespace, *rest = rest
        kind = self._kinds.get((group, version, rest[0]))
        named = bool(namespace) or len(rest) > 1
        if kind is None or len(rest) > 3 or (named and kind.namespaced != bool(namespace)):
            raise status_errors.no_such_path()
        if len(rest) == 3 and rest[2] not in kind.subresources:
            raise status_errors.no_such_path()
        return Target(kind, namespace, *rest[1:3])

    def discovery(self, path: str) -> Json | None:
        """Return the answer to a discovery path, or None if the path addresses objects."""
        if path == "/version":
            return VERSION
        group, version, *rest = self._split(path)
        kinds = [kind for kind in self._kinds.values() if (kind.group, kind.version) == (group, version)]
        if rest or not kinds:
            return None
        names = [f"{kind.plural}{part}" for kind in kinds for part in ("", *(f"/{sub}" for sub in kind.subresources))]
        return {"kind": "APIResourceList", "apiVersion": "v1", "resources": [{"name": name} for name in names]}

    def _split(self, path: str) -> list[str]:
        """Split a path into group, version and the remaining parts."""
        parts = [part for part in path.split("/") if part]
        if parts[:2] == ["api", "v1"]:
            return ["", *parts[1:]]
        if parts[:1] == ["apis"] and len(parts) >= 3:
            return parts[1:]
        raise status_errors.no_such_path()
