"""Pure. CustomResourceDefinitions: what is wrong with one, what the server fills in, and the kinds it makes.

In: a definition. Out: `Kind`s with schema and columns, one a served version; all versions share their objects.
"""

from collections.abc import Iterator

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import schema
from springtide_lab.kubernetes.objects.kinds import Column, Kind


def fill_in(item: Json) -> None:
    """Names that follow from others, and the status of a definition that is in force."""
    spec = item["spec"]
    names = spec.setdefault("names", {})
    names.setdefault("singular", names.get("kind", "").lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    spec.setdefault("conversion", {"strategy": "None"})
    stored = [each["name"] for each in spec.get("versions", []) if each.get("storage")]
    status = item.setdefault("status", {})
    status["acceptedNames"], status["storedVersions"] = dict(names), stored
    at = item["metadata"].get("creationTimestamp", "")
    status["conditions"] = [
        {
            "type": "NamesAccepted",
            "status": "True",
            "reason": "NoConflicts",
            "message": "no conflicts found",
            "lastTransitionTime": at,
        },
        {
            "type": "Established",
            "status": "True",
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
            "lastTransitionTime": at,
        },
    ]


def faults(item: Json) -> Iterator[str]:
    spec, names = item["spec"], item["spec"].get("names", {})
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if item["metadata"]["name"] != wanted:
        name = item["metadata"]["name"]
        yield f'metadata.name: Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield f'spec.scope: Unsupported value: "{spec.get("scope")}": supported values: "Cluster", "Namespaced"'
    if [bool(each.get("storage")) for each in spec.get("versions", [])].count(True) != 1:
        yield "spec.versions: Invalid value: must have exactly one version marked as storage version"
    for index, version in enumerate(spec.get("versions", [])):
        found = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        if found is None:
            yield f"{path}: Required value: schemas are required"
            continue
        yield from schema.misshapen(found, path)
        for at, column in enumerate(version.get("additionalPrinterColumns") or []):
            path = f"spec.versions[{index}].additionalPrinterColumns[{at}]"
            if column.get("type") not in ("integer", "number", "string", "boolean", "date"):
                yield f'{path}.type: Unsupported value: "{column.get("type")}"'
            if not str(column.get("jsonPath", "")).startswith("."):
                yield f"{path}.jsonPath: Invalid value: must be a simple json path"


def kinds_of(item: Json) -> list[Kind]:
    spec, names = item["spec"], item["spec"]["names"]
    return [
        Kind(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names["singular"],
            list_kind=names["listKind"],
            namespaced=spec["scope"] == "Namespaced",
            short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(each for each in ("status",) if each in (version.get("subresources") or {})),
            custom=True,
            schema=version["schema"]["openAPIV3Schema"],
            columns=tuple(
                Column(
                    each["name"],
                    each["type"],
                    each["jsonPath"],
                    each.get("priority", 0),
                    each.get("format", ""),
                    each.get("description", ""),
                )
                for each in version.get("additionalPrinterColumns") or []
            ),
            fields=tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or []),
        )
        for version in spec["versions"]
        if version.get("served")
    ]
