"""Pure. A process that no host has room for: the job goes on without it, says so, and asks for room again later.

In: `job.state`, when a platform has waited for long enough (`RoleExit.unplaced`). Out: actions, and the numbers that
the job has from now on. Room is asked for again after as long as was waited, then after twice as long, and so on. Whom
the job cannot do without is waited for: its last worker, and a server whose slots nobody else has. Such a one asks for
fewer cores each time, where a plan sets them: large ones wait longest. Next: `job.deadlines` says when it is time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import servers

if TYPE_CHECKING:
    from springtide.job.state import JobState

SOONEST_S = 30.0  # between two askings, however short a platform's patience is
LATEST_S = 3600.0
FORGOTTEN_S = 3600.0  # a cluster that had room for so long since the last asking is not taken for a full one
FEWEST_CORES = 1.0


@dataclass(slots=True, kw_only=True)
class Shortage:
    """What a job does without for now, because there was no room for it."""

    workers: int = 0
    servers: int = 0
    data_workers: int = 0
    again_at: float = 0.0
    """When room is asked for again."""
    tries: int = 0
    """How often it was not found in a row."""
    why: str = ""

    @property
    def any(self) -> bool:
        """Whether something is missing."""
        return bool(self.workers or self.servers or self.data_workers)


def take(state: "JobState", node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    """Go on without this process; None: the job cannot, and its next life is to be waited for."""
    if node.state is not NodeState.EXPECTED:
        return []  # it has come after all, or is not wanted any more
    if state.phase is JobPhase.DRAINING:
        return None
    without = _without_server if node.role.kind is RoleKind.SERVER else _without_worker
    done = without(state, node, ended, at)
    if done is None:
        _ask_for_less(state, node)
    return done


def _ask_for_less(state: "JobState", node: RoleNode) -> None:
    """What must be waited for wants fewer cores, if a plan sets them: somewhere there may be a smaller gap."""
    if state.spec.planning.on and state.spec.planning.resize and node.cpu is not None and node.cpu > FEWEST_CORES:
        node.cpu = max(FEWEST_CORES, node.cpu / 2)


def again(state: "JobState", *, at: float) -> list[events.Event]:
    """Ask for what is missing, if it is time to."""
    short = state.short
    if not short.any or state.phase is not JobPhase.RUNNING or at < short.again_at:
        return []
    why = f"there may be room by now; before: {short.why}"
    found: list[events.Event] = []
    if short.workers:
        found.append(events.WorkersScaled(state.workers + short.workers, why, extra=state.planned.extra))
    if short.servers and state.safety.placed:
        found.append(events.ServersScaled(state.servers_wanted + short.servers, why))
    if short.data_workers and not state.feeding.given_up:
        found.append(state.feeding.more(short.data_workers, why))
    return found


def words(short: Shortage, *, at: float) -> str:
    """What is missing, for people; empty: nothing is."""
    if not short.any:
        return ""
    counts = (("worker", short.workers), ("server", short.servers), ("data worker", short.data_workers))
    missing = " and ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts if count)
    return f"{missing} fewer than wanted: {short.why}; asks for room again in {max(0.0, short.again_at - at):.0f} s"


def note(state: "JobState", node: RoleNode, ended: RoleExit, at: float, **missing: int) -> str:
    """Remember what is missing; the reason, and when it is asked for again, for the story."""
    short = state.short
    if not short.any:
        recent = short.tries and at - short.again_at < FORGOTTEN_S
        short.tries = short.tries + 1 if recent else 1
        waited = max(SOONEST_S, at - node.since)
        short.again_at = at + min(LATEST_S, waited * 2.0 ** (short.tries - 1))
    for name, more in missing.items():
        setattr(short, name, getattr(short, name) + more)
    short.why = ended.unplaced
    return f"{ended}; room is asked for again in {short.again_at - at:.0f} s"


def _without_worker(state: "JobState", node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    others = [other for other in state.of_kind(RoleKind.WORKER) if other is not node and not other.low]
    if not node.low and not any(other.active or (other.finished and not other.removed) for other in others):
        return None
    node.removed = True
    node.move(NodeState.GONE, at=at, why=str(ended))
    state.planned.extra -= node.low
    state.workers = max(state.planned.extra + 1, state.workers - 1)  # those whose script has ended may not be counted
    state.planned.changed(at, planned=False, asked="workers")
    why = str(ended) if node.low else note(state, node, ended, at, workers=1)
    state.run_if_ready(at)
    what = f"go on with {state.workers} worker{'' if state.workers == 1 else 's'}, without {node.role}"
    return [actions.FenceWorker(node.role, node.incarnation, str(ended)), state.decide(what, why), *state.settle()]


def _without_server(state: "JobState", node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    if node.coming:
        before = state.servers_wanted
        what, _ = servers.give_up(state, node, str(ended), at)
        fewer = before - state.servers_wanted
        return [state.decide(what, note(state, node, ended, at, servers=fewer) if fewer else str(ended))]
    others = [other for other in state.of_kind(RoleKind.SERVER) if other is not node and other.active]
    if state.safety.placed or not others:
        return None
    what, _ = servers.give_up(state, node, str(ended), at)
    return [state.decide(what, note(state, node, ended, at, servers=1)), *state.place(at)]
