"""Random event histories: a job ends once, with a reason, and its invariants hold."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import stateful

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.domain.spec.planning_config import PlanningStage, PlanRules
from springtide.job.core import actions, events
from springtide.job.core.nodes import LEGAL, NodeState
from springtide.job.scaling import data_workers, plan
from springtide.job.state import JobState
from tests.oracles import job_invariants

MAX_RANK = 5
BOUNDS = ShapeBounds(
    least=Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0),
    most=Shape(workers=MAX_RANK, servers=2, worker_cpu=1.0, server_cpu=1.0, worker_memory=2**32),
    quota=ResourceBudget(cpu=100.0, memory=2**40),
)
SPEC = JobSpec(
    name="job",
    servers=2,
    workers=2,
    join_s=40,
    silence_s=8,
    relaunches=3,
    worker_memory=2**30,
    drain_s=20,
    planning=PlanRules(bounds=BOUNDS, resize=False),
)
TICK = None


class World:
    """The state machine and its observers; `hear` checks all invariants."""

    def __init__(self):
        self.state, self.now = JobState(SPEC), 0.0
        self.ends, self.fenced, self.lost = [], set(), set()
        self.seen, self.fed = self.look(), False

    def look(self):
        """Where every role is in its lives."""
        return {name: (node.incarnation, node.state) for name, node in self.state.nodes.items()}

    def hear(self, event, pause_s=0.0):
        """Handle one event or clock tick, then check every invariant."""
        self.now += pause_s
        for each in self.state.due(at=self.now) if event is TICK else [event]:
            self.take(each)

    def take(self, event):
        """One event, then every check."""
        before, before_roster = self.look(), (self.state.feeding.epoch, data_workers.roster(self.state))
        try:
            done = self.state.handle(event, at=self.now)
        except errors.SpringtideError:
            assert self.look() == before, "a refused event has changed something"
            done = []
        job_invariants.check(self.state)
        self.ends += [action for action in done if isinstance(action, actions.EndJob)]
        assert len(self.ends) == self.state.phase.over, "a job ends once"
        self.check_lives(before)
        self.check_fences(done)
        self.check_servers(done)
        self.check_roster(before_roster)
        wanted = [(each.role, each.incarnation) for each in self.state.wanted()]
        assert len({role for role, _ in wanted}) == len(wanted), "a role is wanted twice"
        assert not self.fenced.intersection(wanted) or self.finished_only(wanted), "a fenced life is wanted"

    def finished_only(self, wanted):
        """A worker whose script ended is fenced and may still run for a while."""
        nodes = [self.state.node(role) for role, incarnation in wanted if (role, incarnation) in self.fenced]
        return all(node.state is NodeState.FINISHED for node in nodes)

    def check_lives(self, before):
        """Lives follow one another, and each goes by the table."""
        for name, (incarnation, state) in self.look().items():
            then, was = before.get(name, (0, NodeState.EXPECTED))
            if incarnation == then and state is not was:
                assert state in LEGAL[was] and state is not NodeState.EXPECTED
            else:
                assert incarnation == then or (incarnation == then + 1 and state is NodeState.EXPECTED)

    def check_fences(self, done):
        """Every ended worker incarnation was fenced once, and nothing else was."""
        for action in done:
            if isinstance(action, actions.FenceWorker):
                assert (action.role, action.incarnation) not in self.fenced, "fenced twice"
                assert action.why
                self.fenced.add((action.role, action.incarnation))
        for node in self.state.nodes.values():
            if node.role.kind is RoleKind.WORKER and self.state.phase is not JobPhase.FAILED:
                lives = {life for role, life in self.fenced if role == node.role}
                over = node.state in (NodeState.FINISHED, NodeState.GONE)
                assert lives == set(range(node.incarnation + over)), f"{node.role}: {lives} fenced"

    def check_roster(self, before):
        """Equal roster epochs mean equal rosters, and a data worker alone never ends a job."""
        epoch, roster = self.state.feeding.epoch, data_workers.roster(self.state)
        assert roster == before[1] or epoch > before[0], "the roster has changed, and nobody hears of it"
        self.fed = self.fed or bool(roster)
        assert all(each.address.endswith(each.name) for each in roster), "an address of another life"

    def check_servers(self, done):
        """Every ended server incarnation was reported lost once; a job without all servers recovers or is over."""
        for action in done:
            if isinstance(action, actions.ServerLost):
                assert (action.role, action.incarnation) not in self.lost and action.why
                self.lost.add((action.role, action.incarnation))
            if isinstance(action, actions.ServerReturned):
                node = self.state.node(action.role)
                assert (node.incarnation, node.address) == (action.incarnation, action.address)
        if self.state.phase is JobPhase.FAILED:
            return
        for node in self.state.of_kind(RoleKind.SERVER):
            assert {life for role, life in self.lost if role == node.role} == set(range(node.incarnation))
        if self.state.phase in (JobPhase.RUNNING, JobPhase.DRAINING):
            servers = self.state.of_kind(RoleKind.SERVER)
            here = [node for node in servers if node.state is not NodeState.GONE and not node.coming]
            away = [node for node in here if not node.address]
            assert self.state.healing == bool(away)


def ended(role, how, incarnation):
    """An exit of a process."""
    kinds = {
        "killed": {"signal": "SIGKILL"},
        "oom": {"signal": "SIGKILL", "oom": True},
        "evicted": {"signal": "SIGTERM", "evicted": True},
        "crashed": {"code": 1},
        "left": {"code": 0},
        "unplaced": {"unplaced": "0/3 nodes have room"},
    }
    return events.RoleExited(RoleExit(role=role, pid=1, incarnation=incarnation, **kinds[how]))


def of_feeder(pick, feeder):
    """What may happen to a data worker."""
    life = max(0, feeder.incarnation - (pick(range(6)) == 0))
    if feeder.role.kind is not RoleKind.DATA_WORKER or pick([0, 0, 1]):
        return events.RoleJoined(feeder.role, life)
    if pick(range(4)) == 0:
        return events.EvictionNoticed(feeder.role, life, "there is room beside its trainers")
    how = pick(["killed", "oom", "evicted", "crashed", "left", "unplaced", "ready", "ready"])
    where = events.RoleReady(feeder.role, f"host:{feeder.role}.{life}", life)
    return where if how == "ready" else ended(feeder.role, how, life)


def draw_event(world, pick, rare):
    """Draw a possible event. `pick` chooses mostly from live roles, sometimes from dead ones."""
    nodes = list(world.state.nodes.values())
    node = pick(nodes)
    role = node.role if pick(range(20)) else Role(RoleKind.WORKER, MAX_RANK)
    life = max(0, node.incarnation - (pick(range(6)) == 0))
    kind = pick(["join"] * 6 + ["heard"] * 4 + ["ready"] * 3 + ["tick"] * 3 + ["finish"] * 2 + ["gone"] * 2 + rare)
    match kind:
        case "join":
            return events.RoleJoined(role, life)
        case "heard":
            return events.RoleAlive(role, life)
        case "ready":
            server = world.state.node(Role(RoleKind.SERVER, pick(range(SPEC.servers))))
            life = max(0, server.incarnation - (pick(range(6)) == 0))
            return events.RoleReady(server.role, f"host:{server.role.rank}.{life}", life)
        case "saved":
            return events.CheckpointSaved(pick(range(9)))
        case "tick":
            return TICK
        case "finish":
            return events.ScriptFinished(role, life) if role.kind is RoleKind.WORKER else TICK
        case "gone":
            worker = pick([each for each in nodes if each.role.kind is RoleKind.WORKER])
            return ended(worker.role, pick(["killed", "oom", "evicted", "crashed", "left"]), worker.incarnation)
        case "scale":
            return events.WorkersScaled(pick(range(MAX_RANK)), "asked")
        case "plan":
            memory = pick([2**30, 2**31])
            shape = Shape(
                workers=pick(range(1, MAX_RANK)), servers=2, worker_cpu=1.0, server_cpu=1.0, worker_memory=memory
            )
            return events.PlanTaken(shape, PlanningStage.ADJUSTING, "faster")
        case "move":
            return plan.next_move(world.state) or TICK
        case "feed":
            return events.DataWorkersScaled(pick(range(MAX_RANK)), pick([None, 0.5, 2.0]), "tuned", pinned=pick([0, 1]))
        case "unfed":
            return events.DataWorkersRefused("it cannot be handed over")
        case "feeder":
            return of_feeder(pick, pick([each for each in nodes if each.role.kind is RoleKind.DATA_WORKER] or [node]))
        case "lost" | "unplaced":
            return ended(role, "killed", life) if kind == "lost" else ended(node.role, kind, life)
        case "server lost":
            server = world.state.node(Role(RoleKind.SERVER, pick(range(SPEC.servers))))
            return ended(server.role, pick(["killed", "oom", "evicted", "crashed", "left"]), server.incarnation)
        case "leaving":
            return events.EvictionNoticed(node.role, life, "its pod is being evicted", empty=pick([False, True]))
        case "infrastructure":
            return events.ScriptFailed(role, "Error", "trace", Blame.INFRASTRUCTURE, life)
        case "raised":
            return events.ScriptFailed(role, "Error", "trace", Blame.USER, life)
        case _:
            return events.MasterTookOver(2) if kind == "recover" else events.StopRequested("Ctrl-C")


RARE = [
    "leaving",
    "leaving",
    "plan",
    "move",
    "move",
    "scale",
    "scale",
    "infrastructure",
    "recover",
    "stop",
    "lost",
    "raised",
    "saved",
    "server lost",
    "feed",
    "unfed",
    "feeder",
    "feeder",
    "unplaced",
    "unplaced",
]
# nothing that ends a job before its data does
CALM = ["plan", "move", "move", "scale", "recover", "saved", "server lost", "finish", "finish", "finish"]
CALM += ["feed", "feed", *["feeder"] * 8, "unplaced"]


class JobHistories(stateful.RuleBasedStateMachine):
    """Hypothesis looks for a short history that breaks something."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @stateful.rule(data=st.data(), pause_s=st.floats(0, 3))
    def something_happens(self, data, pause_s):
        self.world.hear(
            draw_event(self.world, lambda choices: data.draw(st.sampled_from(list(choices))), RARE), pause_s
        )


TestJobHistories = JobHistories.TestCase


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_random_histories_keep_every_invariant(seed, count):
    chance = random.Random(seed)
    phases = {phase: 0 for phase in JobPhase}
    relaunched = scaled = healed = planned = fed = short = again = 0
    for number in range(count):
        world, rare = World(), CALM if number % 3 == 0 else RARE  # else hardly one in a thousand would finish
        for _ in range(chance.randrange(80)):
            world.hear(draw_event(world, lambda choices: chance.choice(list(choices)), rare), chance.uniform(0, 2))
        phases[world.state.phase] += 1
        relaunched += world.state.relaunches
        scaled += world.state.workers != SPEC.workers
        planned += world.state.planned.stage is PlanningStage.ADJUSTING and world.state.planned.target is None
        fed += world.fed
        short += world.state.short.any
        again += world.state.short.tries and not world.state.short.any
        healed += bool(world.lost) and not world.state.healing and world.state.phase is not JobPhase.FAILED
    assert all(phases.values()), f"some phase was never reached: {phases}"
    assert relaunched > count / 4 and scaled > count / 20 and healed > count / 40 and planned > count / 40
    assert fed > count / 80 and short > count / 40 and again > count / 200
