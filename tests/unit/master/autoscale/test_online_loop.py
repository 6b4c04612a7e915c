"""The closed loop of an online job with a manual clock and a scripted planner."""

import asyncio
import contextlib
import types
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.data.streams import PartitionView, StepSums, StreamUse
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.online_job import OnlineJob, OnlinePoint, OnlineRules, Scaling, TrafficStep
from springtide.job.core import events
from springtide.master.autoscale.forecast import TrafficForecast
from springtide.master.autoscale.online_loop import OnlineAutoscaler
from springtide.master.autoscale.stream_stats import StreamStats
from springtide.master.core.context import ChangeSignal, MasterContext
from springtide.master.core.record import JobRecord
from springtide.planning.online import decision
from springtide.planning.online.traffic import RateForecast
from springtide.rpc.messages.types import MemberReport
from springtide.telemetry.events import Series, read_points
from springtide.telemetry.logs import RunFiles
from tests.unit.master.autoscale.test_loop import RULES

WALL, BATCH = 1_700_000_000.0, 10
ONLINE = OnlineJob(on=True, rules=OnlineRules(fewest=1, most=4), servers_follow=True)


class ScriptedForecaster:
    """A forecaster whose answers the test sets."""

    trouble = ""
    asked = 0

    async def forecast(self, history, steps):
        self.asked += 1
        mean = np.full(steps, history.values[-1])
        return RateForecast(
            step_s=history.step_s, mean=mean, low=mean, high=2 * mean, member="a test", why="as the last step"
        )

    def close(self):
        self.trouble = "closed"


class World:
    """A job with a manual clock whose worker reports are set by the test."""

    def __init__(self, tmp_path, monkeypatch, job=ONLINE, *, workers=1, record=None, at=0.0, **spec):
        self.now, self.files, self.told, self.views = at, RunFiles(tmp_path), [], []
        self.answer = lambda view: Scaling(workers=view.workers, why="all is well")
        self.record = record or JobRecord(JobSpec(name="clicks", workers=workers, online=job, **spec))
        self.happen = lambda event: self.record.apply(event, self.now)
        doors = SimpleNamespace(
            record=self.record,
            state=self.record.state,
            changed=ChangeSignal(),
            apply=self.happen,
            clock=lambda: self.now,
            journaled=lambda change, *arguments: change(*arguments),
            log_event=lambda kind, **fields: self.told.append((kind, fields)),
            _last_news={},
        )
        for own in (MasterContext.store, MasterContext.is_news):
            setattr(doors, own.__name__, types.MethodType(own, doors))
        self.forecasts = ScriptedForecaster()
        foresight = TrafficForecast(job, self.forecasts, self.files, wall=WALL + at, at=at)
        points = Series(self.files.online, OnlinePoint, most=100)
        self.online = OnlineAutoscaler(doors, StreamStats(wall=WALL + at, at=at), foresight, points)
        self.trained, self.end, self.came = {}, 0.0, []
        monkeypatch.setattr(OnlineAutoscaler, "reads", True)
        monkeypatch.setattr(OnlineAutoscaler, "_batch", BATCH)
        monkeypatch.setattr(decision, "decide", self.decide)
        monkeypatch.setattr(decision, "due", lambda view, rules, planned_at: True)
        for rank in range(self.record.state.servers_wanted):
            self.join(Role(RoleKind.SERVER, rank), address=f"host:{rank}")
        self.arrive()

    def decide(self, view, rules):
        self.views.append(view)
        return self.answer(view)

    def join(self, role, address=""):
        life = self.record.state.node(role).incarnation
        with contextlib.suppress(Exception):
            self.happen(events.RoleJoined(role, life, 1))
        if address:
            self.happen(events.RoleReady(role, address, life))

    def arrive(self):
        """All that are awaited come."""
        for wanted in self.record.state.wanted():
            self.join(wanted.role, f"host:{wanted.role.rank}" if wanted.role.kind is RoleKind.SERVER else "")

    def go(self, seconds, *, traffic, pace=100.0, paces=None, step_s=1.0, filled=1.0):
        """Let time pass: traffic arrives and workers train it at this pace and batch fill."""
        self.filled = filled

        async def run():
            left = seconds
            while left > 0:
                self.now += step_s
                left -= step_s
                self.end += traffic * step_s
                self.came.append((self.end, self.now))
                self.work(step_s, pace, paces or {})
                self.online.tick(self.now, moving=0)
                while self.online._asking is not None:
                    await asyncio.sleep(0)

        asyncio.run(run())

    def work(self, step_s, pace, paces):
        alive = [node for node in self.record.state.of_kind(RoleKind.WORKER) if node.state == "joined"]
        waiting = self.end - sum(done for done, _, _ in self.trained.values())
        for place, node in enumerate(alive):
            life = Life(node.role, node.incarnation)
            done, busy, waited = self.trained.get(life, (0.0, 0.0, 0.0))
            own = paces.get(node.role.rank, pace)
            some = min(waiting / (len(alive) - place), own * step_s)
            waiting -= some
            self.trained[life] = (done + some, busy + some / own, waited + step_s - some / own)
            total = sum(done for done, _, _ in self.trained.values())
            oldest = next((at for end, at in self.came if end > total), 0.0)
            view = PartitionView(0, int(total), int(self.end), WALL + oldest)
            done, busy, waited = self.trained[life]
            size = self.filled * BATCH
            steps = StepSums(done / size, done, busy, done * size, busy * size)
            use = StreamUse(partitions=(view,), records=int(done), busy_s=busy, waited_s=waited, steps=steps)
            self.online.on_report(life, MemberReport(step=int(done / size), stream=use), at=self.now)

    @property
    def kinds(self):
        return [kind for kind, _ in self.told]


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def test_loop_measures_arrivals_backlog_and_worker_capacity(world):
    world.go(200, traffic=80)
    view = world.views[-1]
    assert view.workers == 1 and view.arrivals == pytest.approx(80, rel=0.05)
    assert view.utilization == pytest.approx(0.8, rel=0.05)
    assert view.capacity == pytest.approx((0, 100, 200, 300, 400), rel=0.05)
    state = world.online.status(world.now)
    assert (
        state.lag_s <= 2
        and state.totals.violation == 0
        and state.totals.worker_hours == pytest.approx(200 / 3600, rel=0.05)
    )


def test_added_workers_have_a_reason_and_servers_follow_in_proportion(world):
    world.answer = lambda view: Scaling(workers=3, why="more is expected")
    world.go(40, traffic=80)
    assert (world.record.state.workers, world.record.state.servers_wanted) == (3, 3)
    assert "more is expected" in world.online.status(world.now).why
    assert world.online.status(world.now).scaling.changes == 1
    world.arrive()
    world.go(20, traffic=80)
    assert world.record.state.workers == 3 and world.views[-1].workers == 3


def test_servers_follow_within_the_latest_user_bounds(world):
    world.happen(events.BoundsChanged(None, (1, 2), "the spec was changed"))
    world.answer = lambda view: Scaling(workers=3, why="more is expected")
    world.go(40, traffic=80)
    assert (world.record.state.workers, world.record.state.servers_wanted) == (3, 2)


def test_more_workers_than_can_share_a_batch_are_refused_with_a_reason(world, monkeypatch):
    def refuse(book, workers):
        raise errors.BadInput(f"{workers} workers cannot share a batch")

    monkeypatch.setattr(JobLedger, "check_group", refuse)
    world.answer = lambda view: Scaling(workers=3, why="more is expected")
    world.go(40, traffic=80)
    assert world.record.state.workers == 1 and world.online.status(world.now).scaling.changes == 0
    assert world.online.status(world.now).why == "more is expected; not now: 3 workers cannot share a batch"
    assert sum(kind == "online" and "not now" in fields["why"] for kind, fields in world.told) == 1


def test_no_scaling_starts_while_one_is_in_progress(world):
    world.answer = lambda view: Scaling(workers=view.workers + 1, why="more")
    world.go(60, traffic=80)
    assert world.record.state.workers == 2  # worker-1 has not come yet
    assert world.views[-1].pausing
    world.arrive()
    world.go(20, traffic=80)
    assert world.record.state.workers == 3


def test_worker_start_time_is_learned(world):
    world.answer = lambda view: Scaling(workers=2, why="more")
    world.go(65, traffic=80)
    world.arrive()
    world.go(20, traffic=80)
    rules = world.online._rules()
    assert rules.start_s == pytest.approx(40, abs=15) and rules.most == 4


def test_online_job_replaces_the_core_sizes_of_planning_once(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, planning=RULES, worker_cpu=0.5, server_cpu=0.5)
    world.go(3, traffic=80)
    assert {size.cpu for size in world.record.state.planned.sizes.values()} == {2.0}
    changed = world.record.state.planned.epoch
    world.go(3, traffic=80)
    assert world.record.state.planned.epoch == changed


def test_reason_for_not_scaling_is_logged_once(world):
    world.answer = lambda view: Scaling(workers=1, why=f"{view.arrivals:.0f} samples/s come")
    world.go(300, traffic=50)
    said = [fields["why"] for kind, fields in world.told if kind == "online"]
    assert said[0].startswith("no worker has trained for long enough") and len(said) == 2
    assert "samples/s come" in said[1]


def test_manually_set_worker_count_is_kept(world):
    world.answer = lambda view: Scaling(workers=4, why="more")
    world.happen(events.WorkersScaled(2, "by hand", pinned=True))
    world.arrive()
    world.go(100, traffic=80)
    assert world.record.state.workers == 2 and "set by hand" in world.online.status(world.now).why


def test_changed_bounds_release_a_manually_set_worker_count(world):
    world.answer = lambda view: Scaling(workers=4, why="more")
    world.happen(events.WorkersScaled(2, "by hand", pinned=True))
    world.happen(events.BoundsChanged((1, 3), None, "the spec was changed"))
    world.arrive()
    world.go(100, traffic=80)
    assert world.record.state.workers == 3
    assert (status := world.online.status(world.now)).scaling.most == 3 and status.scaling.fewest == 1


def test_overload_alert_and_its_end_are_each_logged_once(world):
    alert = "cannot keep up: {:.0f} samples/s come"
    world.answer = lambda view: Scaling(workers=4, why="all there are", alert=alert.format(view.at))
    world.go(40, traffic=900)
    world.arrive()
    world.go(60, traffic=900)
    assert world.kinds.count("alert") == 1 and "alert_over" not in world.kinds
    assert world.online.status(world.now).alert.startswith("cannot keep up")
    world.answer = lambda view: Scaling(workers=4, why="less comes")
    world.go(60, traffic=90)
    assert world.kinds.count("alert") == world.kinds.count("alert_over") == 1
    assert not world.online.status(world.now).alert


def test_unkept_dead_letters_are_logged_once_across_master_restarts(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, workers=2)

    def refuse(world, rank, letters):
        use = StreamUse(corrupt=letters + 5, unkept=letters, unkept_why=f"the box of {rank} is full")
        world.online.on_report(Life(Role(RoleKind.WORKER, rank), 0), MemberReport(step=1, stream=use), at=world.now)

    refuse(world, 0, 0)
    assert not world.told
    refuse(world, 1, 3)
    refuse(world, 0, 4)
    assert world.told == [("letters_not_kept", {"role": "worker-1", "why": "the box of 1 is full"})]
    state = world.online.status(world.now)
    assert (state.stream.corrupt, state.stream.unkept, state.stream.unkept_why) == (17, 7, "the box of 1 is full")
    after = World(tmp_path, monkeypatch, record=world.record)
    refuse(after, 0, 9)
    assert "letters_not_kept" not in after.kinds


def test_lag_above_the_slo_counts_as_violation(tmp_path, monkeypatch):
    job = OnlineJob(on=True, rules=OnlineRules(most=1, slo_lag_s=30.0))
    world = World(tmp_path, monkeypatch, job)
    world.go(400, traffic=200)
    state = world.online.status(world.now)
    assert state.lag_s > 100 and state.totals.violation > 0.5 and state.backlog == pytest.approx(40_000, rel=0.1)
    assert state.totals.lag_min > 0 and state.totals.down_min == 0


def test_partial_batches_give_only_a_lower_bound_of_worker_capacity(world):
    world.go(40, traffic=60, pace=40.0, filled=0.2)
    assert world.views[-1].capacity[1] == pytest.approx(40, rel=0.1)  # steps were all alike: nothing better is known
    world.go(100, traffic=200, pace=100.0)
    assert world.views[-1].capacity[1] == pytest.approx(100, rel=0.3)


def test_capacity_of_a_mostly_idle_worker_is_not_overestimated(world):
    world.go(60, traffic=99, pace=100.0)
    world.go(200, traffic=50, pace=1000.0)
    assert world.views[-1].capacity[1] == pytest.approx(100, rel=0.1)


def test_successor_master_keeps_learned_rates_and_totals(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.go(1900, traffic=80, step_s=5.0)
    known = world.online.status(world.now)
    snapshot = JobRecord.from_bytes(world.record.to_bytes())
    later = World(tmp_path, monkeypatch, record=snapshot, at=world.now + 3)
    state = later.online.status(later.now)
    assert state.totals.hours == pytest.approx(known.totals.hours, abs=0.01)
    later.go(30, traffic=80)
    assert later.views[0].capacity[1] == pytest.approx(100, rel=0.05)
    assert "as the last step" in later.views[0].outlook.why and later.forecasts.asked == 1
    assert later.views[0].outlook.mean[0] == pytest.approx(80, rel=0.05)


def test_traffic_history_of_another_run_can_be_given(tmp_path, monkeypatch):
    given = tmp_path / "before.jsonl"
    steps = [TrafficStep(at=WALL - 600 * n, seconds=600, samples=600 * 42.0) for n in range(200, 0, -1)]
    given.write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    world = World(tmp_path, monkeypatch, OnlineJob(on=True, rules=OnlineRules(most=2), history=str(given)))
    world.go(40, traffic=80)
    assert world.views[0].outlook.mean[0] == pytest.approx(42)
    assert len(read_points(world.files.traffic, TrafficStep)) == 200


def test_forecast_without_history_extends_the_last_minutes_and_says_so(world):
    world.go(40, traffic=80)
    assert world.views[-1].outlook.mean[0] == pytest.approx(80, rel=0.1)
    assert "only the last minutes are known" in world.views[-1].outlook.why


def test_sped_up_job_measures_rates_and_records_shorter_traffic_steps(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, OnlineJob(on=True, rules=OnlineRules(most=2), speedup=288.0))
    world.go(100, traffic=2880, pace=5760, step_s=0.25)
    view = world.views[-1]
    assert view.arrivals == pytest.approx(2880, rel=0.05) and view.capacity[1] == pytest.approx(5760, rel=0.05)
    assert view.outlook.mean[0] == pytest.approx(2880, rel=0.05) and view.backlog < 288 * 2880
    kept = read_points(world.files.traffic, TrafficStep)[-1]
    assert kept.samples / kept.seconds == pytest.approx(2880, rel=0.05)
    assert len(read_points(world.files.traffic, TrafficStep)) == pytest.approx(48, abs=2)
    assert world.online.status(world.now).totals.hours == pytest.approx(8, rel=0.05)


def test_online_points_are_recorded_for_the_dashboard(world):
    world.go(100, traffic=80)
    points = read_points(world.files.online, OnlinePoint)
    assert len(points) == pytest.approx(100 / 15, abs=2)
    assert points[-1].arriving == pytest.approx(80, rel=0.05) and points[-1].workers == 1
    assert points[-1].at == pytest.approx(WALL + world.now, abs=20)


def test_failing_planner_changes_only_the_reported_reason(world):
    def broken(view):
        raise ZeroDivisionError("no capacity")

    world.answer = broken
    world.go(40, traffic=80)
    assert world.record.state.workers == 1
    assert "the scaling decision failed: ZeroDivisionError" in world.online.status(world.now).why


def test_time_without_training_during_scaling_is_downtime(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.go(30, traffic=80)
    world.happen(events.WorkersScaled(2, "more", planned=True))
    world.go(20, traffic=80, pace=1e-9)
    assert world.online.status(world.now).totals.down_min * 60 == pytest.approx(17, abs=3)
    world.arrive()
    world.go(20, traffic=80)
    assert world.online.status(world.now).totals.down_min * 60 < 21


def test_online_loop_closes_its_forecaster(world):
    asyncio.run(world.online.close())
    assert world.forecasts.trouble == "closed"


def test_slow_worker_is_named_until_it_recovers(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, workers=3)
    world.go(150, traffic=1000, paces={1: 30.0})
    assert world.online.slow == (1,)
    world.go(400, traffic=1000)
    assert world.online.slow == ()
    named, over = [fields for kind, fields in world.told if kind == "slow"]
    assert named["workers"] == ["worker-1"] and "worker-1 trains 30 samples/s" in named["why"]
    assert over["why"] == "no worker is slow any more"
