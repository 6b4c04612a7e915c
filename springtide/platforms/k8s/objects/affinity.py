"""Pure. Where data workers go, in the scheduler's own words: beside a trainer of their job, else where it is quiet.

In: a job's name, and the affinity that its user gave. Out: the affinity of a data worker's pod
(`platforms.k8s.objects.pods`). Both are preferences: a data worker runs anywhere rather than not at all. What the user
says of pods is not added to.
"""

from collections.abc import Mapping
from typing import Any

from springtide.domain.core.roles import RoleKind
from springtide.platforms.k8s.objects import names

LOCAL, QUIET = 100, 50
"""Weights of 1 to 100: batches that do not cross the network first, then nodes whose network trainers leave alone."""
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def affinity(job: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the user gave, with these preferences where nothing was said of pods."""
    trainer = {"key": names.ROLE, "operator": "In", "values": [str(RoleKind.WORKER)]}
    mine = {"key": names.JOB, "operator": "In", "values": [job]}
    others = {"key": names.JOB, "operator": "NotIn", "values": [job]}
    wanted = {
        "podAffinity": {PREFERRED: [_preference(LOCAL, trainer, mine)]},
        "podAntiAffinity": {PREFERRED: [_preference(QUIET, trainer, others)]},
    }
    return {**wanted, **given}


def _preference(weight: int, *pods: Mapping[str, Any]) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions": [dict(one) for one in pods]}}
    return {"weight": weight, "podAffinityTerm": term}
