"""Pure. What must go because its owner is gone, or because its node is: a cluster's garbage collectors.

In: all objects that have owners, and who exists. Out: what to delete.
"""

from collections.abc import Callable, Iterable

from springtide_lab.kubernetes.api.object_store import Key
from springtide_lab.kubernetes.api.status_errors import Json


def orphans(items: Iterable[Json], living: set[str]) -> list[Json]:
    """Objects all of whose owners are gone; `living` are the uids of everything that exists."""
    found = []
    for item in items:
        owners = item["metadata"].get("ownerReferences") or []
        if owners and not any(owner["uid"] in living for owner in owners):
            found.append(item)
    return found


def owned_by(
    uid: str, entries: Iterable[tuple[str, Key]], get: Callable[[str, Key], Json | None]
) -> list[tuple[str, Key]]:
    found = []
    for resource, key in list(entries):
        item = get(resource, key)
        owners = [] if item is None else item["metadata"].get("ownerReferences") or []
        if any(owner["uid"] == uid for owner in owners):
            found.append((resource, key))
    return found


def stranded(pods: Iterable[Json], nodes: set[str]) -> list[Json]:
    return [pod for pod in pods if pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in nodes]
