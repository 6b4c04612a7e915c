"""Pure. What to do about a role that was lost: start it again, how, or give up. Every verdict has its reason.

In: `job.state` with how the process ended. Out: `Relaunch` or `GiveUp`. The rules:

=====================================  ================================================================
a crash, a kill, a missed heartbeat    relaunch; at once, then after a pause that doubles; up to a limit
killed for want of memory              relaunch at once with twice the memory; up to the same limit; of a server's
                                       kind there are twice as many from then on
evicted or preempted                   relaunch at once; does not count
no host has room for it                the same, if the job cannot go on without it (`job.scaling.unschedulable`)
an exception in the training code      never comes here: the job fails at once with the user's error
a server is away                       a worker that could not go on without it is relaunched; does not count
=====================================  ================================================================

What becomes of a server's slots: `job.recovery.server_loss`. A data worker that is given up never fails the job:
`job.scaling.data_workers`.
"""

from dataclasses import dataclass

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.spec.job_spec import Blame, JobSpec
from springtide.job.core.nodes import RoleNode

STEADY_S = 300.0  # a worker that has lived so long is no crash loop: its earlier failures are forgotten
MAX_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A symptom that fails the job unless the exit of some process explains it first."""

    since: float
    error: str
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunch:
    """Start the role again, as its next incarnation."""

    why: str
    failures: int
    oom_kills: int
    memory: int | None
    after_s: float = 0.0
    starved: bool = False
    """It was killed for want of memory: if it is a server, the job gets more of them (`job.scaling.servers.double`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    """The job cannot go on."""

    error: str
    blame: Blame


def after_exit(
    node: RoleNode, ended: RoleExit, spec: JobSpec, *, at: float, healing: bool = False
) -> Relaunch | FailJob:
    """A role's process has ended before it should; `healing`: while a server is away."""
    failures, oom_kills = remembered(node, at)
    if ended.evicted or ended.unplaced:
        return Relaunch(why=f"{ended}: not its fault", failures=failures, oom_kills=oom_kills, memory=node.memory)
    if healing and node.said:
        why = f"{node.role} could not wait for a server: {node.said}"
        return Relaunch(why=why, failures=failures, oom_kills=oom_kills, memory=node.memory)
    if ended.oom and node.memory is not None:
        if oom_kills >= spec.relaunches:
            return FailJob(error=f"{ended}{tried(oom_kills, node.memory)}", blame=Blame.INFRASTRUCTURE)
        doubled = 2 * node.memory
        why = f"{ended} at {in_gib(node.memory)}: it gets {in_gib(doubled)}"
        return Relaunch(why=why, failures=failures, oom_kills=oom_kills + 1, memory=doubled, starved=True)
    if node.role.kind is not RoleKind.WORKER:
        return _crashed(node, str(ended), Blame.INFRASTRUCTURE, spec, at)
    how = f"{ended}, status 0, before its script had ended" if ended.clean else str(ended)
    if node.said:
        how = f"{node.role} cannot go on: {node.said}"
    elif not ended.clean:
        how += ", without an exception in the script"
    blame = Blame.INFRASTRUCTURE if ended.signal or node.said else Blame.USER
    return _crashed(node, how, blame, spec, at)


def after_silence(node: RoleNode, silent_s: float, limit_s: float, spec: JobSpec, *, at: float) -> Relaunch | FailJob:
    """A role has missed its heartbeats for longer than the limit."""
    how = f"{node.role} has been silent for {silent_s:.0f} s (limit {limit_s:g} s): its process hangs or is stopped"
    return _crashed(node, how, Blame.INFRASTRUCTURE, spec, at)


def never_joined(node: RoleNode, silent_s: float) -> FailJob:
    """A role's first life has not called in for too long."""
    if node.role.kind is not RoleKind.WORKER:
        error = f"{node.role} has not called in within {silent_s:.0f} s; its log may say why"
        return FailJob(error=error, blame=Blame.INFRASTRUCTURE)
    return FailJob(
        error=f"{node.role}: the script has not called st.join() within {silent_s:.0f} s. "
        "Call it before anything slow, or raise --timeout.",
        blame=Blame.USER,
    )


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
    """Failures and kills for want of memory that still count."""
    return (0, 0) if at - node.since >= STEADY_S else (node.failures, node.oom_kills)


def backoff_s(failures: int, base_s: float) -> float:
    """The pause before a relaunch, `failures` crashes having come before this one: none, base, twice that, ..."""
    return min(MAX_BACKOFF_S, base_s * 2.0 ** min(failures - 1, 30)) if failures else 0.0


def tried(times: int, memory: int | None = None) -> str:
    """How much was tried before giving up."""
    limit = f" with {in_gib(memory)} at last" if memory is not None else ""
    return f"; relaunched {times} time{'' if times == 1 else 's'} already{limit}, which is the limit" if times else ""


def in_gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**30:.3g} GiB"
