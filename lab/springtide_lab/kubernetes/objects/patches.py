"""Pure. Apply patches to objects: merge patches and strategic merge patches.

In: the object, the patch and its media type. Out: the changed object; the input is not modified.
"""

import copy
from typing import Any

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import Kind

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

LIST_KEYS = {
    "containers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "addresses": "type",
    "taints": "key",
}
"""Key that identifies the items of a list in built-in objects; other lists are replaced as a whole."""


def merge(target: Any, patch: Any, *, strategic: bool = False) -> Any:
    """Return the merge by RFC 7386: null removes a key, objects merge recursively, other values replace.

    With `strategic`, lists of named items merge as well.
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and isinstance(value, list) and key in LIST_KEYS:
            result[key] = _merge_lists(result.get(key) or [], value, LIST_KEYS[key])
        else:
            result[key] = merge(result.get(key), value, strategic=strategic)
    return result


def _merge_lists(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(target)
    for each in patch:
        if key not in each:
            raise status_errors.bad_request(f"map: {each} does not contain declared merge key: {key}")
        at = next((index for index, old in enumerate(result) if old.get(key) == each[key]), None)
        if at is None:
            result.append(merge({}, each, strategic=True))
        else:
            result[at] = merge(result[at], each, strategic=True)
    return result


def apply(target: Json, patch: Any, media: str, kind: Kind) -> Json:
    """Return the object after a patch; refuse strategic patches of custom kinds."""
    if not isinstance(patch, dict):
        raise status_errors.bad_request("a merge patch is an object")
    if media not in (MERGE, STRATEGIC) or (media == STRATEGIC and kind.schema is not None):
        raise status_errors.Refused(415, "UnsupportedMediaType", f"a patch of type {media} is not accepted here")
    return dict(merge(target, patch, strategic=media == STRATEGIC))
