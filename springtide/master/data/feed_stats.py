"""Keeps trainers' feed reports and the CPU use of roles, for the time window of a tuning decision.

In: reports of workers and measurements of the agent, from `master.data.data_workers`; the clock is an argument. Out: a
`FeedSeen` for an interval (`planning.dataworkers.observation`). Nothing is journaled: a master that takes over
observes again.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.data.data_workers import FeedSeen, FeedState, stage_of
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.scaling import data_workers
from springtide.job.state import JobState
from springtide.planning.dataworkers import observation
from springtide.planning.dataworkers.observation import Cores, StageCores, TrainerReport

USE_EVERY_S = 1.0  # interval between readings of a role's CPU seconds
KEPT = 4096  # reports of a trainer, or readings of a role: about an hour at one a second


class StageLayout(NamedTuple):
    """Number of stages of the job's data program, as far as known, and their GPUs."""

    number: int = 1
    gpu: tuple[int, ...] = ()
    free_gpu: int = 0


ONE_STAGE = StageLayout()


class FeedStats:
    """Feed statistics of one job."""

    def __init__(self) -> None:
        self._told: dict[Life, deque[TrainerReport]] = {}
        self._used: dict[Life, deque[tuple[float, float]]] = {}

    def heard(self, role: Role, incarnation: int, state: FeedState | None, *, at: float) -> None:
        """Record a report of a trainer, or of a data worker with an earlier stage before it."""
        if state is not None:
            self._told.setdefault(Life(role, incarnation), deque(maxlen=KEPT)).append(TrainerReport(at, state))

    def measure(self, usage: Mapping[Role, RoleUsage], *, at: float) -> None:
        """Record the agent's newest measurements."""
        for role, one in usage.items():
            seen = self._used.setdefault(Life(role, one.incarnation), deque(maxlen=KEPT))
            if not seen or at >= seen[-1][0] + USE_EVERY_S:
                seen.append((at, one.cpu_s))

    def forget(self, before: float) -> None:
        """Drop reports and readings from before this time."""
        for told in self._told.values():
            while len(told) > 1 and told[1].at < before:
                told.popleft()
        for used in self._used.values():
            while len(used) > 1 and used[1][0] < before:
                used.popleft()
        self._told = {life: told for life, told in self._told.items() if told[-1].at >= before}
        self._used = {life: used for life, used in self._used.items() if used[-1][0] >= before}

    def together(self, state: JobState) -> FeedState | None:
        """Return the sum of the newest reports of all living trainers; None before the first report."""
        said = [told[-1].state for told in self._living(state).values() if told]
        if not said:
            return None
        return FeedState(**{each.name: sum(getattr(one, each.name) for one in said) for each in fields(FeedState)})

    def seen(
        self,
        state: JobState,
        *,
        at: float,
        since: float,
        cores: float,
        hold: bool,
        stages: StageLayout = ONE_STAGE,
        given: float | None = None,
    ) -> FeedSeen | None:
        """Return the observation of an interval; None if there is too little data. `cores` are the cores of the whole
        job. `hold` is True if trainers can get other CPU limits. `given` are the data workers' cores, if a brain has
        set them.
        """
        told = {str(life): words for life, words in self._living(state).items()}
        held = self._cores(state, since, cores, stages, hold=hold)
        if given is not None:
            held = held._replace(free_cpu=given - of_data_workers(state))
        feeding = [_feeding(state, stage, stages.number) for stage in range(stages.number)]
        asked = [{str(_life(node)): self._told.get(_life(node), ()) for node in nodes} for nodes in feeding[1:]]
        seen = observation.see(told, held, at=at, since=since, earlier=asked)
        return seen and replace(seen, free_gpu=stages.free_gpu)

    def _stage(self, nodes: Sequence[RoleNode], since: float, gpu: bool) -> StageCores:
        used = _mean([self._used_by(node, since) for node in nodes])
        return StageCores(len(nodes), _mean([node.cpu or 0.0 for node in nodes]), used, gpu)

    def _living(self, state: JobState) -> dict[Life, Sequence[TrainerReport]]:
        nodes = [node for node in state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        return {life: self._told[life] for node in nodes if (life := _life(node)) in self._told}

    def _cores(self, state: JobState, since: float, cores: float, stages: StageLayout, *, hold: bool) -> Cores:
        present = [node for node in state.nodes.values() if node.state is not NodeState.GONE and not _relieved(node)]
        feeding = [_feeding(state, stage, stages.number) for stage in range(stages.number)]
        workers = [node for node in state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        held = sum(node.cpu for node in present if node.cpu is not None)
        loose = sum(self._used_by(node, since) for node in present if node.cpu is None)
        gpu = stages.gpu if stages.number > 1 else ()
        return Cores(
            stages=tuple(self._stage(nodes, since, at in gpu) for at, nodes in enumerate(feeding)),
            trainer_cpu=_mean([node.cpu or 0.0 for node in workers]) if hold else 0.0,
            trainer_cpu_used=_mean([self._used_by(node, since) for node in workers]),
            free_cpu=_free(cores, held, loose),
            share_cpu=cores / max(1, len(workers)),
        )

    def _used_by(self, node: RoleNode, since: float) -> float:
        """Return the cores that a role used in the interval."""
        seen = [each for each in self._used.get(_life(node), ()) if each[0] >= since]
        if len(seen) < 2:
            return 0.0
        return max(0.0, seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def _free(cores: float, held: float, loose: float) -> float:
    """Return the free cores. The result is negative if the limits exceed the available cores. Roles without a limit can
    use up the free cores, but not more.
    """
    return min(cores - held, max(0.0, cores - held - loose))


def of_data_workers(state: JobState) -> float:
    """Return the total cores of data workers."""
    return sum(node.cpu or 0.0 for node in _there(state))


def all_feed(state: JobState) -> bool:
    """Return True if no data worker is starting or leaving. Otherwise cores and speed do not match."""
    return all(node.state is NodeState.JOINED and node.address for node in _there(state))


def _there(state: JobState) -> list[RoleNode]:
    return [node for node in data_workers.of(state) if node.state is not NodeState.GONE and not _relieved(node)]


def _relieved(node: RoleNode) -> bool:
    """Return True for a data worker that serves only until its replacement does. Their overlap does not count."""
    return node.departure.replaced and node.role.kind is RoleKind.DATA_WORKER


def _feeding(state: JobState, stage: int, stages: int) -> list[RoleNode]:
    """Return the data workers of one stage that serve now."""
    return [
        node
        for node in data_workers.of(state)
        if node.state is NodeState.JOINED and node.address and stage_of(node.role.rank, stages) == stage
    ]


def _life(node: RoleNode) -> Life:
    return Life(node.role, node.incarnation)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
