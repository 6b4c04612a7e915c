"""Pure. The environment and the command of a container, from a pod and what it refers to.

In: the pod, the container, ConfigMaps and Secrets by name. Out: variables, with `$(NAME)` filled in; or `Missing`,
which a kubelet reports as CreateContainerConfigError and tries again.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.api.tables import read
from springtide_lab.kubernetes.objects import selectors

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
_INDEXED = re.compile(r"(.*)\['([^']*)'\]")
Lookup = Callable[[str, str], Json | None]
"""(`configmaps` or `secrets`, name) to the object."""


class Missing(Exception):
    """Something that the pod refers to is not there."""


def references(pod: Json) -> set[tuple[str, str]]:
    """All ConfigMaps and Secrets that a pod needs, as (resource, name)."""
    found: set[tuple[str, str]] = set()

    def look(kind: str, wanted: Json) -> None:
        found.add(("configmaps" if kind == "configMap" else "secrets", wanted.get("name") or wanted["secretName"]))

    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        for source in container.get("envFrom") or []:
            for key, wanted in source.items():
                if key.endswith("Ref"):
                    look(key.removesuffix("Ref"), wanted)
        for entry in container.get("env") or []:
            for key, wanted in (entry.get("valueFrom") or {}).items():
                if key in ("configMapKeyRef", "secretKeyRef"):
                    look(key.removesuffix("KeyRef"), wanted)
    for volume in pod["spec"].get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            for kind in ("configMap", "secret"):
                if kind in source:
                    look(kind, source[kind])
    return found


def variables(pod: Json, container: Json, lookup: Lookup) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        kind = "configMapRef" if "configMapRef" in source else "secretRef"
        for key, value in _data(kind.removesuffix("Ref"), source[kind], lookup).items():
            found[source.get("prefix", "") + key] = value.decode()
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value_from = _value(pod, container, entry["valueFrom"], lookup)
            if value_from is not None:
                found[entry["name"]] = value_from
        else:
            found[entry["name"]] = expand(str(entry.get("value", "")), found)
    return found


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as its value; unknown names stay, `$$` is one dollar."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def command(container: Json, known: Mapping[str, str]) -> list[str]:
    """What is run: there is no image, so the pod must say it."""
    words: Sequence[str] = [*(container.get("command") or []), *(container.get("args") or [])]
    return [expand(word, known) for word in words]


def _value(pod: Json, container: Json, source: Json, lookup: Lookup) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource(pod, container, source["resourceFieldRef"])
    for kind in ("configMap", "secret"):
        if f"{kind}KeyRef" in source:
            wanted = source[f"{kind}KeyRef"]
            data = _data(kind, wanted, lookup)
            if wanted["key"] in data:
                return data[wanted["key"]].decode()
            if wanted.get("optional"):
                return None
            raise Missing(f"couldn't find key {wanted['key']} in {kind} {wanted['name']}")
    return None


def field(pod: Json, path: str) -> str:
    """The downward API: `metadata.labels['x']`, `status.podIP`, `spec.nodeName` ..."""
    if found := _INDEXED.fullmatch(path):
        return str((read(pod, "." + found[1]) or {}).get(found[2], ""))
    value: Any = read(pod, "." + path)
    if isinstance(value, dict):
        return "\n".join(f'{key}="{each}"' for key, each in sorted(value.items()))
    return "" if value is None else str(value)


def resource(pod: Json, container: Json, wanted: Json) -> str:
    """The downward API: limits and requests of a container, in units of `divisor`, rounded up."""
    name = wanted.get("containerName", container.get("name"))
    chosen = next((each for each in pod["spec"]["containers"] if each["name"] == name), container)
    part, _, key = wanted["resource"].partition(".")
    amount = ((chosen.get("resources") or {}).get(part) or {}).get(key)
    if amount is None:
        return "0"
    return str(-int(-selectors.number(amount) // selectors.number(wanted.get("divisor") or "1")))


def _data(kind: str, reference: Json, lookup: Lookup) -> dict[str, bytes]:
    found = lookup("configmaps" if kind == "configMap" else "secrets", reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise Missing(f'{kind.lower()} "{reference["name"]}" not found')
    return contents(found)


def contents(item: Json) -> dict[str, bytes]:
    if item.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
