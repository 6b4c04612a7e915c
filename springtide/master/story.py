"""How what is done reads in the job's story and in the master's log.

In: `job.core.actions`, as `master.dispatcher` does them. Out: an event for `telemetry.events`, where the action is
worth one.
"""

import logging
from typing import Any, NamedTuple

from springtide.job.core import actions

log = logging.getLogger(__name__)


class Told(NamedTuple):
    """An event of the story."""

    kind: str
    fields: dict[str, Any]


def told(action: actions.Action) -> Told | None:
    """Log the action; what the story tells of it."""
    match action:
        case actions.PlaceSlots(addresses):
            return Told("placed", {"epoch": 1, "servers": list(addresses)})
        case actions.ServerLost(role, incarnation, why):
            return Told("lost", {"role": str(role), "incarnation": incarnation, "why": why})
        case actions.FenceWorker(role, incarnation, why):
            return Told("fenced", {"role": str(role), "incarnation": incarnation, "why": why})
        case actions.ServerLeft(role):
            return Told("left", {"role": str(role)})
        case actions.LogDecision(what, why, known):
            log.info("%s: %s", what, why)
            return None if known else Told("decision", {"what": what, "why": why})
        case actions.PlanCompleted(shape, why):
            return Told("plan", {"outcome": "done", "shape": shape, "why": why})
        case actions.RollBack(anew):
            log.info("all begin anew" if anew else "all go back to the last checkpoint")
        case actions.DrainWorkers(why):
            log.info("draining: %s", why)
        case actions.EndJob(phase, why, blame):
            log.info("%s (%s): %s", phase, blame, why)
        case actions.ServerReturned(role, incarnation, address):
            log.info("%s is back as incarnation %d at %s", role, incarnation, address)
    return None
