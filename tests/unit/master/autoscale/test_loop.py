"""The closed loop with a manual clock and a scripted adviser."""

import asyncio

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind, RoleUsage
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.data_workers import FeedRules, FeedShare
from springtide.domain.data.samples import DatasetCard
from springtide.domain.plan.plan import WITHOUT_BRAIN, Advice, ShapePlan
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.planning_config import PlanningConfig, PlanningIdentity, PlanningStage, PlanRules
from springtide.job.core import events
from springtide.master.autoscale.loop import AdviserSetup
from springtide.master.core.record import JobRecord
from springtide.master.main import build_service
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import MemberReport
from springtide.telemetry import events as event_log
from springtide.telemetry.events import EventLog
from tests import waiting
from tests.unit.master.test_dispatcher import Clock, join_all_roles

CARD = DatasetCard(samples=100_000, batch_size=10)
LEAST = Shape(workers=1, servers=1, worker_cpu=0.1, server_cpu=0.1)
MOST = Shape(workers=4, servers=2, worker_cpu=1.0, server_cpu=1.0)
SMALL = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5)
LARGER = Shape(workers=2, servers=1, worker_cpu=0.4, server_cpu=0.6)
CONFIG = PlanningConfig(sample_steps=50, sample_s=20.0, between_changes_s=5.0)
RULES = PlanRules(
    bounds=ShapeBounds(least=LEAST, most=MOST, quota=ResourceBudget(cpu=2.0, memory=2**40)),
    config=CONFIG,
    settle_s=1.0,
    window_s=2.0,
    warm_up_steps=5,
    identity=PlanningIdentity(user="ada", features={"script": "train.py"}),
)


class ScriptedAdviser:
    """An adviser whose answers the test sets."""

    def __init__(self, answer=None):
        self.answer = answer or (lambda view, epoch: Advice(epoch=epoch, why="all is well"))
        self.seen, self.past, self.closed = [], [], False

    async def advise(self, view, *, epoch, now):
        self.seen.append(view)
        answer = self.answer(view, epoch)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def conclude(self, past):
        self.past.append(past)

    async def close(self):
        self.closed = True


class World:
    """A master with one worker and one server that train, and a manual clock."""

    def __init__(self, tmp_path, adviser, rules=RULES, **spec):
        self.path, self.clock, self.adviser = tmp_path / "events.jsonl", Clock(), adviser
        self.spec = JobSpec(name="job", worker_cpu=0.5, server_cpu=0.5, planning=rules, **spec)
        self.record = JobRecord(self.spec)
        self.steps = {}

    async def begin(self):
        self.story = EventLog(self.path)
        advised = AdviserSetup(make=lambda: self.adviser, name="job-2", wall=lambda: 1e9 + self.clock.now)
        self.desk = build_service(self.record, self.story, self.clock, advised=advised)
        self.peers = await join_all_roles(self.desk)
        await self.desk.handle(self.peers["worker-0"], messages.LeaseRequest(CARD))
        return self

    async def end(self):
        await self.desk.parts.autoscaler.close()
        self.story.close()

    async def arrive(self):
        """All expected roles join and all draining roles leave."""
        for node in list(self.desk.state.nodes.values()):
            if node.state == "expected":
                peer = self.peers[str(node.role)] = messages_peer(node.role)
                assert node.role.kind is RoleKind.WORKER
                await self.desk.handle(peer, messages.JoinWorker(node.role.rank, 9, node.incarnation))

    async def train(self, seconds, *, pace=20):
        """Let this many seconds pass, with worker reports of this many steps in each."""
        for _ in range(seconds):
            self.clock.now += 1.0
            await self.arrive()
            usage = []
            for node in self.desk.state.nodes.values():
                if node.state == "joined":
                    usage.append(RoleUsage(role=node.role, cpu_s=0.3 * self.clock.now, memory=1 << 20))
                    if node.role.kind is RoleKind.SERVER:
                        self.desk.context.apply(events.RoleAlive(node.role))  # its heartbeats are held, in real time
                        continue
                    done = self.steps[str(node.role)] = self.steps.get(str(node.role), 0) + pace
                    took = done / pace
                    parts = {"total": took, "gradient": 0.6 * took, "update": 0.2 * took, "lookup": 0.2 * took}
                    report = MemberReport(step=done, samples=10 * done, seconds=parts)
                    await self.desk.handle(self.peers[str(node.role)], messages.Heartbeat(report))
            await self.desk.handle(self.peers["agent"], messages.AgentPoll(tuple(usage)))
            self.desk.tick()
            await self.answered()

    async def answered(self):
        """Until the question under way is answered; it passes through a thread."""
        await waiting.soon(lambda: self.desk.parts.autoscaler._asking is None, "the adviser's answer", every_s=0.001)

    def told(self, kind="plan"):
        return [event for event in event_log.read(self.path) if event["event"] == kind]


def messages_peer(role):
    from springtide.rpc.transport.listener import Peer

    return Peer(address=str(role))


def with_world(test, tmp_path, answer=None, **more):
    async def run():
        world = await World(tmp_path, ScriptedAdviser(answer), **more).begin()
        try:
            await test(world)
        finally:
            await world.end()

    asyncio.run(run())


def plan_once(shape=LARGER, **more):
    """A plan when the job has been measured, and then no more."""

    def answer(view, epoch):
        if view.shape == shape or not view.profiles:
            return Advice(epoch=epoch, why=f"measured {len(view.profiles)} windows")
        plan = ShapePlan(job=view.name, shape=shape, reason="it is faster", stage=PlanningStage.ADJUSTING, **more)
        return Advice(epoch=epoch, why="one plan", plan=plan)

    return answer


def test_loop_profiles_the_job_and_applies_the_planned_shape(tmp_path):
    async def test(world):
        await world.train(30)
        status = world.desk.status()
        assert (status.planning.stage, status.planning.shape, status.planning.target, status.planning.settled) == (
            "adjusting",
            LARGER,
            None,
            True,
        )
        wanted = {str(one.role): one.cpu for one in world.desk.state.wanted()}
        assert wanted == {"server-0": 0.6, "worker-0": 0.4, "worker-1": 0.4}
        assert [one["outcome"] for one in world.told()] == ["taken", "done", "nothing"]

    with_world(test, tmp_path, plan_once())


def test_adviser_sees_profiles_usage_and_identity(tmp_path):
    async def test(world):
        await world.train(5)
        view = world.adviser.seen[-1]
        assert (view.name, view.identity.user, view.shape, view.stage) == (
            "job-2",
            "ada",
            SMALL,
            PlanningStage.SAMPLING,
        )
        assert view.identity.features["script"] == "train.py" and view.identity.features["batch"] == 10.0
        assert view.progress.samples_total == 100_000 and view.facts.batch == 10
        assert view.profiles and all(one.shape == SMALL for one in view.profiles)
        assert view.profiles[-1].step_s == pytest.approx(0.05)
        assert (view.profiles[-1].worker_cores, view.profiles[-1].server_cores) == pytest.approx((0.3, 0.3))
        assert view.progress.last_change_at is None, "it has the shape that it was started with"
        assert {str(use.role): round(use.cpu_used, 2) for use in view.uses} == {"worker-0": 0.3, "server-0": 0.3}
        assert {use.cpu for use in view.uses} == {0.5} and view.findings == ()

    with_world(test, tmp_path)


def test_repeated_decision_reason_is_logged_once_though_its_numbers_change(tmp_path):
    async def test(world):
        await world.train(20)
        assert len(world.adviser.seen) > 5
        assert len(world.told()) == 1
        assert world.desk.status().master.decision == "leave the job as it is"
        assert world.told("decision") == []

    with_world(
        test, tmp_path, lambda view, epoch: Advice(epoch=epoch, why=f"sampled for {view.progress.samples_done} steps")
    )


def test_unreachable_brain_is_logged_though_the_reason_is_unchanged(tmp_path):
    async def test(world):
        await world.train(20)
        world.adviser.answer = lambda view, epoch: Advice(
            epoch=epoch, why="all is well", notes=(f"{WITHOUT_BRAIN}: nobody answers",)
        )
        await world.train(20)
        told = [bool(one["notes"]) for one in world.told() if one["why"] == "all is well"]
        assert told == [False, True]

    with_world(test, tmp_path)


def test_profiled_job_that_keeps_its_shape_counts_as_settled(tmp_path):
    async def test(world):
        await world.train(4)
        assert not world.desk.status().planning.settled
        await world.train(10)
        assert world.desk.status().planning.settled and world.desk.status().planning.stage == "adjusting"

    with_world(test, tmp_path)


async def hang(*_):
    await asyncio.Event().wait()


def broken(view, epoch):
    raise ZeroDivisionError("no model")


def unreachable(view, epoch):
    raise errors.BrainUnreachable("nobody listens")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (broken, "ZeroDivisionError"),
        (unreachable, "nobody listens"),
        (hang, "not answered"),
        (lambda view, epoch: Advice(epoch=epoch - 1, why="late", plan=None), "an earlier state"),
        (plan_once(Shape(workers=4, servers=2, worker_cpu=1.0, server_cpu=1.0)), "quota"),
    ],
)
def test_failing_hanging_or_lying_adviser_changes_nothing(tmp_path, answer, why):
    async def test(world):
        await world.train(10)
        status = world.desk.status()
        assert status.planning.shape == SMALL and status.planning.target is None and not status.planning.settled
        last = world.told()[-1]
        assert why in last["why"] and last["outcome"] in ("failed", "refused")
        assert len(world.told()) <= 2

    rules = PlanRules(bounds=RULES.bounds, config=CONFIG, settle_s=1.0, window_s=2.0, warm_up_steps=5, patience_s=0.02)
    with_world(test, tmp_path, answer, rules=rules)


def test_recovering_job_asks_no_adviser_and_changes_nothing(tmp_path):
    async def test(world):
        await world.train(3)
        asked = len(world.adviser.seen)
        lost = RoleExit(role=Role(RoleKind.WORKER, 0), pid=2, signal="SIGKILL")
        world.desk.context.apply(events.RoleExited(lost))
        for _ in range(5):
            world.clock.now += 1.0
            world.desk.tick()
            await world.answered()
        assert len(world.adviser.seen) == asked
        assert world.desk.status().planning.shape is None

    with_world(test, tmp_path)


def test_advice_that_arrives_during_recovery_is_ignored(tmp_path):
    async def test(world):
        async def late(view, epoch):
            world.desk.context.apply(
                events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, 0), pid=2, signal="SIGKILL"))
            )
            return plan_once()(view, epoch)

        world.adviser.answer = lambda view, epoch: late(view, epoch) if view.profiles else plan_once()(view, epoch)
        for _ in range(8):
            await world.train(1)
            if world.desk.state.node(Role(RoleKind.WORKER, 0)).incarnation:
                break
        assert world.desk.state.planned.target is None and world.desk.state.workers == 1

    with_world(test, tmp_path)


def test_successor_master_continues_the_plan(tmp_path):
    async def test(world):
        while world.desk.state.planned.target is None:
            await world.train(1)
        again = JobRecord.from_bytes(world.record.to_bytes())
        assert again.state.planned == world.record.state.planned
        assert again.state.planned.target == LARGER and again.state.planned.stage is PlanningStage.ADJUSTING

    with_world(test, tmp_path, plan_once())


def test_changes_keep_their_minimum_interval(tmp_path):
    shapes = [SMALL, LARGER]

    def restless(view, epoch):
        other = shapes[1 - shapes.index(view.shape)]
        return Advice(
            epoch=epoch, why="change!", plan=ShapePlan(job=view.name, shape=other, reason=f"change to {other}")
        )

    async def test(world):
        await world.train(40)
        taken = [at for at, one in enumerate(world.told()) if one["outcome"] == "taken"]
        assert 2 <= len(taken) <= 40 / CONFIG.between_changes_s
        assert any("between changes" in one["why"] for one in world.told() if one["outcome"] == "refused")

    with_world(test, tmp_path, restless)


def test_finished_job_is_recorded_with_its_final_shape(tmp_path):
    async def test(world):
        await world.train(30)
        for rank in (0, 1):
            await world.desk.handle(world.peers[f"worker-{rank}"], messages.FinishRequest())
        world.desk.tick()
        assert world.desk.state.phase is JobPhase.FINISHED
        await world.desk.parts.autoscaler.close()
        (past,) = world.adviser.past
        assert (past.initial, past.shape, past.finished, past.user) == (SMALL, LARGER, True, "ada")
        assert past.ended_at > 1e9 and past.throughput and past.features["batch"] == 10.0
        assert world.adviser.closed

    with_world(test, tmp_path, plan_once())


def test_job_that_ended_while_sampling_is_not_recorded(tmp_path):
    async def test(world):
        await world.train(2)
        await world.desk.handle(world.peers["worker-0"], messages.FinishRequest())
        world.desk.tick()
        assert world.desk.state.phase is JobPhase.FINISHED
        await world.desk.parts.autoscaler.close()
        assert world.adviser.past == [] and world.adviser.seen == []

    with_world(test, tmp_path)


def test_job_without_planning_rules_is_not_scaled(tmp_path):
    async def test(world):
        await world.train(10)
        assert world.adviser.seen == [] and world.told() == []
        status = world.desk.status()
        assert (status.planning.stage, status.planning.shape, status.planning.settled) == ("", None, False)

    with_world(test, tmp_path, rules=PlanRules())


def test_brain_share_of_data_workers_holds_until_the_brain_is_unreachable(tmp_path):
    fed = FeedShare(trainers=1, speed=2.0, capable=10.0, cpu=1.0, least=1.0)
    given = [2.5]

    def answer(view, epoch):
        if given[0] is None:
            raise errors.BrainUnreachable("away")
        return Advice(epoch=epoch, why="all is well", data_cores=given[0])

    async def test(world):
        world.desk.parts.data_workers.share = fed
        await world.train(12)
        assert world.adviser.seen[-1].fed == fed and world.desk.parts.autoscaler.data_cores == 2.5
        given[0] = float("nan")
        await world.train(6)
        assert world.desk.parts.autoscaler.data_cores == 2.5 and "nan" in world.told()[-1]["why"]
        given[0] = None
        await world.train(6)
        assert world.desk.parts.autoscaler.data_cores is None

    with_world(test, tmp_path, answer, feeding=FeedRules(workers=None, every_s=1e6))
