"""Pure. What a controller manager would do to the objects of one namespace now.

In: all of them, with their kinds; the nodes there are; whether the namespace is to go. Out: steps. Next: `controllers`
does them, and looks again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from springtide.platforms.k8s.api.kinds import CLAIMS, DISRUPTION_BUDGETS, PODS, Object, ObjectKind
from springtide_lab.kubernetes.control import garbage_collector, namespaces

FOREGROUND, IN_USE = "foregroundDeletion", "kubernetes.io/pvc-protection"
Found = Sequence[tuple[ObjectKind, Object]]


@dataclass(frozen=True, slots=True)
class Delete:
    """It has no owner any more, or no node, or no namespace."""

    kind: ObjectKind
    thing: Object
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Let:
    """Nothing that we know of holds it any more: these finalizers stay."""

    kind: ObjectKind
    thing: Object
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """A budget's figures."""

    kind: ObjectKind
    thing: Object
    status: Object


Step = Delete | Let | Count


def decide(there: Found, *, nodes: set[str], leaving: bool) -> list[Step]:
    return [*_deletions(there, nodes, leaving), *_releases(there), *_counts(there)]


def _deletions(there: Found, nodes: set[str], leaving: bool) -> Iterator[Step]:
    living = {thing["metadata"]["uid"] for _, thing in there}
    going = {thing["metadata"]["uid"] for _, thing in there if FOREGROUND in _holds(thing)}
    stranded = garbage_collector.stranded([thing for kind, thing in there if kind is PODS], nodes)
    lost = {pod["metadata"]["uid"] for pod in stranded}
    for kind, thing in there:
        uid = thing["metadata"]["uid"]
        if uid in lost:
            yield Delete(kind, thing, 0)
        elif "deletionTimestamp" in thing["metadata"]:
            continue
        elif leaving or garbage_collector.orphans([thing], living - going):
            yield Delete(kind, thing)


def _releases(there: Found) -> Iterator[Step]:
    owned = {owner["uid"] for _, thing in there for owner in thing["metadata"].get("ownerReferences") or []}
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for kind, pod in there
        if kind is PODS
        for volume in pod["spec"].get("volumes") or []
        if "persistentVolumeClaim" in volume
    }
    for kind, thing in there:
        if "deletionTimestamp" not in thing["metadata"]:
            continue
        free = set()
        if thing["metadata"]["uid"] not in owned:
            free.add(FOREGROUND)
        if kind is CLAIMS and thing["metadata"]["name"] not in used:
            free.add(IN_USE)
        holds = _holds(thing)
        if free & set(holds):
            yield Let(kind, thing, tuple(each for each in holds if each not in free))


def _counts(there: Found) -> Iterator[Step]:
    pods = [thing for kind, thing in there if kind is PODS]
    for kind, budget in there:
        if kind is DISRUPTION_BUDGETS:
            status = namespaces.counted(budget, pods)
            known = budget.get("status") or {}
            if any(known.get(key) != value for key, value in status.items()):
                yield Count(kind, budget, status)


def _holds(thing: Object) -> list[str]:
    return list(thing["metadata"].get("finalizers") or [])
