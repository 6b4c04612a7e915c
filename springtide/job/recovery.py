"""Pure. Decides whether a lost role is relaunched or the job fails. Counts the interruptions of a bsp group.

A crash, a kill or a missed heartbeat counts as a failure. Each further relaunch of the role waits longer, up to a
limit. A role that was killed for lack of memory gets twice the memory. Three kinds of role are relaunched
immediately: a role that was evicted, a role that found no host, and a worker that could not wait for a server. A
lost server restores its slots from a checkpoint (`master.servers.recovery`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.job.core.nodes import RoleNode

# a worker that ran for this many seconds is not in a crash loop, so its earlier failures are forgotten
STEADY_S = 300.0
MAX_BACKOFF_S = 60.0


@dataclass(slots=True, kw_only=True)
class GroupBreaks:
    """Interruptions of one job's bsp groups since the job began."""

    formed_at: float | None = None
    start_s: float = 0.0
    """Seconds from the start of the job until the first group formed, including the start of all processes and
    tables."""
    losses: int = 0
    waits: int = 0
    """Number of times that the group waited for a relaunched worker and then continued its step."""
    waited_s: float = 0.0
    returns: int = 0
    returned_s: float = 0.0
    back_at: float | None = None
    """Time when the current rollback began; None if no rollback is in progress."""

    def went_back(self, since: Iterable[float], *, at: float) -> None:
        """Record a rollback. `since` has the times at which the relaunch of each lost worker was requested."""
        lost = list(since)
        self.losses += len(lost)
        self.back_at = min(lost, default=at)

    def formed(
        self,
        before: Mapping[int, int],
        members: Iterable[LeaseHolder],
        since: Mapping[int, float],
        *,
        start: float,
        at: float,
    ) -> None:
        """Record that a new group has formed. `before` has the previous group's incarnations by rank. `since` has the
        time at which each incarnation began."""
        again = [
            since[member.rank]
            for member in members
            if before.get(member.rank, member.incarnation) != member.incarnation
        ]
        if again:
            self.losses, self.waits = self.losses + len(again), self.waits + 1
            self.waited_s += at - min(again)
        if self.back_at is not None:
            self.returns, self.returned_s = self.returns + 1, self.returned_s + at - self.back_at
            self.back_at = None
        if self.formed_at is None:
            self.formed_at, self.start_s = at, at - start

    def watched_s(self, at: float) -> float:
        """Return the seconds since the first group formed; losses are counted over this time."""
        return 0.0 if self.formed_at is None else at - self.formed_at

    @property
    def return_s(self) -> float:
        """Return how many seconds longer a rollback takes than waiting for one worker to be relaunched.

        Until the first rollback, assume that a rollback takes as long as the start of the job. Until the first wait,
        assume that a wait takes 0 seconds. Both assumptions can only make the result too long.
        """
        whole = self.returned_s / self.returns if self.returns else self.start_s
        return max(0.0, whole - (self.waited_s / self.waits if self.waits else 0.0))


class Suspicion(msgspec.Struct, frozen=True):
    """A symptom that fails the job, unless the exit of some process explains the symptom in time."""

    since: float
    error: str
    trace: str = ""


class Relaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Start the role again, as its next incarnation."""

    why: str
    failures: int
    oom_kills: int
    memory: int | None
    after_s: float = 0.0
    starved: bool = False
    """True if the role was killed for lack of memory. If the process is a server, the job gets more servers."""


class FailJob(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that the job cannot continue."""

    error: str
    blame: Blame


class RestorePoint(msgspec.Struct, kw_only=True):
    """Checkpoints to which a job can roll back after it loses a server."""

    saved: int | None = None
    origin: int = 0
    """Checkpoint of another run from which this job resumed. The job rolls back to this checkpoint until the job has
    written one of its own.
    """
    placed: bool = False
    """True if servers have got their slots. Before servers get slots, they have no rows."""
    lost: dict[int, int] = msgspec.field(default_factory=dict)
    """Number of losses of each server, by rank."""
    begun_anew: int = 0
    """Number of restarts of the whole job without a checkpoint."""
    breaks: GroupBreaks = msgspec.field(default_factory=GroupBreaks)

    @property
    def known(self) -> bool:
        return self.saved is not None or self.origin != 0

    @property
    def newest(self) -> str:
        own = f"checkpoint {self.saved}"
        return own if self.saved is not None else f"checkpoint {self.origin}, from which the job continued"


def after_exit(
    node: RoleNode, ended: RoleExit, spec: JobSpec, *, at: float, healing: bool = False
) -> Relaunch | FailJob:
    """Decide whether to relaunch a role after an unexpected exit, or to fail the job. `healing` is True while a server
    is lost and not yet ready again."""
    failures, oom_kills = remembered(node, at)
    if ended.evicted or ended.unplaced:
        return Relaunch(
            why=f"{ended}; this does not count as a failure", failures=failures, oom_kills=oom_kills, memory=node.memory
        )
    reported = node.faults.said
    if healing and reported:
        why = f"{node.role} could not wait for a server: {reported}"
        return Relaunch(why=why, failures=failures, oom_kills=oom_kills, memory=node.memory)
    if ended.oom and node.memory is not None:
        if oom_kills >= spec.relaunches:
            return FailJob(error=f"{ended}{tried(oom_kills, node.memory)}", blame=Blame.INFRASTRUCTURE)
        doubled = 2 * node.memory
        why = f"{ended} at {in_gib(node.memory)}: its memory limit rises to {in_gib(doubled)}"
        return Relaunch(why=why, failures=failures, oom_kills=oom_kills + 1, memory=doubled, starved=True)
    if node.role.kind is not RoleKind.WORKER:
        return _crashed(node, str(ended), Blame.INFRASTRUCTURE, spec, at)
    how = f"{ended}, status 0, before its script had ended" if ended.clean else str(ended)
    if reported:
        how = f"{node.role} cannot continue: {reported}"
    elif not ended.clean:
        how += ", without an exception in the script"
    blame = Blame.INFRASTRUCTURE if ended.signal or reported else Blame.USER
    return _crashed(node, how, blame, spec, at)


def after_silence(node: RoleNode, silent_s: float, limit_s: float, spec: JobSpec, *, at: float) -> Relaunch | FailJob:
    how = f"{node.role} has been silent for {silent_s:.0f} s (limit {limit_s:g} s): its process hangs or is stopped"
    return _crashed(node, how, Blame.INFRASTRUCTURE, spec, at)


def never_joined(node: RoleNode, silent_s: float, *, others: bool) -> FailJob:
    """Fail the job, because a role's first incarnation has not joined in time. If `others` have joined with the same
    script, the message does not blame the script.
    """
    if node.role.kind is not RoleKind.WORKER:
        error = f"{node.role} has not joined within {silent_s:.0f} s; its log may say why"
        return FailJob(error=error, blame=Blame.INFRASTRUCTURE)
    if others:
        error = (
            f"{node.role} has not joined within {silent_s:.0f} s, although another worker has: its machine may be "
            "overloaded. Start fewer processes, or raise --timeout"
        )
        return FailJob(error=error, blame=Blame.INFRASTRUCTURE)
    return FailJob(
        error=f"{node.role}: the script has not called st.join() within {silent_s:.0f} s. "
        "Call st.join() before anything slow, or raise --timeout.",
        blame=Blame.USER,
    )


def may_begin_anew(spec: JobSpec, phase: JobPhase) -> bool:
    return spec.checkpoints.on and phase is not JobPhase.DRAINING


def after_server_loss(
    verdict: Relaunch | FailJob, safety: RestorePoint, *, trained: bool, saves: bool
) -> Relaunch | FailJob:
    """Decide what to do after the loss of a server. `trained`: a worker may have written to the server. `saves`: the
    job makes checkpoints."""
    if not trained or isinstance(verdict, FailJob) or safety.known or saves:
        return verdict
    error = f"{verdict.why}: its rows are lost, and the job cannot continue, because no checkpoint is complete yet"
    return FailJob(error=error, blame=Blame.INFRASTRUCTURE)


def relaunch_text(node: RoleNode, after_s: float, restored: str = "") -> str:
    """Describe a relaunch that has begun. `restored` names the checkpoint from which a server restores its slots."""
    pause = f" after {after_s:g} s" if after_s else ""
    source = f"; its slots come from {restored}" if restored else ""
    return f"relaunch {node.role} as incarnation {node.incarnation}{pause}{source}"


def _crashed(node: RoleNode, how: str, blame: Blame, spec: JobSpec, at: float) -> Relaunch | FailJob:
    failures, oom_kills = remembered(node, at)
    if failures >= spec.relaunches:
        return FailJob(error=f"{how}{tried(failures)}", blame=blame)
    return Relaunch(
        why=how,
        failures=failures + 1,
        oom_kills=oom_kills,
        memory=node.memory,
        after_s=backoff_s(failures, spec.backoff_s),
    )


def remembered(node: RoleNode, at: float) -> tuple[int, int]:
    return (0, 0) if at - node.since >= STEADY_S else (node.faults.crashes, node.faults.oom_kills)


def backoff_s(failures: int, base_s: float) -> float:
    """Return the delay before a relaunch after this many crashes: none, the base, twice the base, and so on."""
    return min(MAX_BACKOFF_S, base_s * 2.0 ** min(failures - 1, 30)) if failures else 0.0


def tried(times: int, memory: int | None = None) -> str:
    limit = f", most recently with {in_gib(memory)}" if memory is not None else ""
    return f"; relaunched {times} time{'' if times == 1 else 's'} already{limit}, which is the limit" if times else ""


def in_gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
