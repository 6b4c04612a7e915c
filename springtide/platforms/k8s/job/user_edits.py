"""Interprets changes that users make to a running job through ScalePlans or the job's spec.

In: ScalePlans of users, and each new spec of the ElasticJob; `launch.k8s.agent_pod` watches both. Out: requests to the
master, and a reply to each plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.shape import ShapeBounds
from springtide.domain.plan.scale_plan import ScalePlan
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, RoleWish
from springtide.platforms.k8s.api.kinds import Object
from springtide.rpc.messages import messages

CHANGED = "the job's spec was changed"
APPLIED, REJECTED, SUPERSEDED = "Applied", "Rejected", "Superseded"


@dataclass(frozen=True, slots=True)
class UserPlan:
    """A user's plan without a reply."""

    name: str
    made_at: str
    plan: ScalePlan | None
    trouble: str = ""
    """Reason why the plan is invalid."""


def open_wish(thing: Object) -> UserPlan | None:
    """Return a plan that awaits an answer; None if it has one or is being deleted."""
    metadata = thing["metadata"]
    if (thing.get("status") or {}).get("phase") or "deletionTimestamp" in metadata:
        return None
    name, at = metadata["name"], str(metadata.get("creationTimestamp", ""))
    try:
        plan = schema.made(ScalePlan, thing["spec"])
        if plan.workers is plan.servers is plan.data_workers is None:
            return UserPlan(name, at, None, "it says no number: wanted workers, servers or dataWorkers")
        return UserPlan(name, at, plan)
    except errors.BadInput as error:
        return UserPlan(name, at, None, str(error))


def newest(wishes: Iterable[UserPlan]) -> tuple[UserPlan | None, list[UserPlan]]:
    """Return the plan to apply and the older ones that it supersedes."""
    ordered = sorted(wishes, key=lambda wish: (wish.made_at, wish.name))
    return (ordered[-1], ordered[:-1]) if ordered else (None, [])


def asked(plan: ScalePlan, name: str) -> messages.ScaleRequest:
    why = plan.reason or f"asked by the user (ScalePlan {name})"
    return messages.ScaleRequest(workers=plan.workers, servers=plan.servers, data_workers=plan.data_workers, why=why)


def changed(
    before: ElasticJob, now: ElasticJob, status: messages.JobStatus, *, planned: bool = False
) -> messages.ScaleRequest | None:
    """Return the `Scale` that an edited spec asks for; None if it changes no number.

    `planned`: bounds go to `rebound` instead.
    """
    workers = _number(before.workers, now.workers, status.workers_wanted, planned=planned)
    servers = _number(before.servers, now.servers, status.servers_wanted, planned=planned)
    data_workers = None
    if before.data_workers != now.data_workers and now.data_workers != "auto":
        data_workers = 0 if now.data_workers == "off" else int(now.data_workers)
    if workers is servers is data_workers is None:
        return None
    return messages.ScaleRequest(workers=workers, servers=servers, data_workers=data_workers, why=CHANGED)


def rebound(before: ElasticJob, now: ElasticJob, limits: ShapeBounds) -> messages.BoundsRequest | None:
    """Return new planning bounds from an edited spec, None if they did not change.

    `limits`: the bounds that spec and cluster allow.
    """
    found = {
        name: (getattr(limits.least, name), getattr(limits.most, name))
        for name in ("workers", "servers")
        if _differ(getattr(before, name), getattr(now, name)) and getattr(now, name).count is None
    }
    return messages.BoundsRequest(**found, why=CHANGED) if found else None


def _differ(before: RoleWish, now: RoleWish) -> bool:
    return (before.count, before.min, before.max) != (now.count, now.min, now.max)


def _number(before: RoleWish, now: RoleWish, wanted: int, *, planned: bool) -> int | None:
    """Return an edited count; without planning, return the bound that the current count violates."""
    if not _differ(before, now) or (planned and now.count is None):
        return None
    within = max(now.min or 1, min(wanted, now.max or wanted))
    number = now.count if now.count is not None else within
    return number if number != wanted else None
