"""The planner's view of a job contains what its master knows."""

import msgspec
import pytest

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleExit, RoleKind, RoleUsage
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model import tables
from springtide.domain.plan.view import FindingKind
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.planning_config import PlanRules
from springtide.job.core import events
from springtide.job.scaling import plan
from springtide.master.autoscale import job_view
from springtide.master.autoscale.profiler import Profiler
from springtide.master.core.record import JobRecord
from springtide.planning.guards import memory
from springtide.rpc.messages.types import MemberReport

WORKER, SERVER = Role(RoleKind.WORKER, 0), Role(RoleKind.SERVER, 0)
BOUNDS = ShapeBounds(
    least=Shape(workers=1, servers=1, worker_cpu=0.1, server_cpu=0.1),
    most=Shape(workers=4, servers=4, worker_cpu=4.0, server_cpu=4.0, worker_memory=2**40, server_memory=2**40),
    quota=ResourceBudget(cpu=8.0, memory=2**42),
)
RULES = PlanRules(bounds=BOUNDS, settle_s=1.0, window_s=2.0, warm_up_steps=5)
CARD = DatasetCard(samples=1000, batch_size=8, epochs=3)


class QuietGuards:
    """Guards without findings."""

    ahead, refused = (), None


def training_record(card=CARD, **spec):
    """A record of a job that trains."""
    given = dict(worker_cpu=0.5, server_cpu=0.5, planning=RULES)
    record = JobRecord(JobSpec(name="job", **(given | spec)))
    record.apply(events.RoleJoined(SERVER), 1.0)
    record.apply(events.RoleReady(SERVER, "here"), 1.0)
    record.apply(events.RoleJoined(WORKER), 2.0)
    record.lease(LeaseHolder(0, 0), card, 1, 2.0)
    return record


def sources(record, watching=None, guards=QuietGuards, usage=None):
    watching = watching or Profiler(RULES)
    if watching.era is None:
        watching.poll(plan.shape_of(record.state), list(record.state.nodes.values()), {}, at=3.0)
    return job_view.ViewSources(name="job-2", record=record, watching=watching, guards=guards, usage=usage or {})


def test_job_view_takes_facts_from_the_model_outline_and_dataset_card():
    record = training_record()
    made = tables.Outline(
        tables=(tables.TableOutline(name="a", paths=("a", "b"), rows=10, dim=16),),
        dense=(tables.DenseOutline(name="w", shape=(3, 5), dtype="float32", table=0, first=0, chunks=1),),
    )
    record.shared.share(tables.SHARED_KEY, msgspec.msgpack.encode(made))
    view = job_view.view(sources(record), now=4.0)
    assert (view.facts.dense_bytes, view.facts.dim, view.facts.batch) == (60.0, 32.0, 8)
    assert view.identity.features["tables"] == 1.0 and view.identity.features["sync"] == "async"
    assert (view.progress.samples_done, view.progress.samples_total) == (0.0, 3000.0)


def test_bsp_workers_share_a_batch_and_are_bounded_by_its_samples():
    together = DatasetCard(samples=1000, batch_size=3, in_step=True)
    view = job_view.view(sources(training_record(card=together, sync="bsp")), now=4.0)
    assert (view.facts.group, view.facts.batch, view.bounds.most.workers) == (3, 3, 3)
    assert view.identity.features["sync"] == "bsp" and view.bounds.most.servers == 1
    view = job_view.view(sources(training_record()), now=4.0)
    assert (view.facts.group, view.bounds.most.workers) == (0, BOUNDS.most.workers)


def test_bsp_workers_are_bounded_by_the_smallest_remaining_batch():
    uneven = DatasetCard(samples=1026, batch_size=8, shard_batches=16, in_step=True)
    record = training_record(card=uneven, sync="bsp")
    view = job_view.view(sources(record), now=4.0)
    assert (view.facts.group, view.bounds.most.workers) == (8, 2)
    record.book.check_group(view.bounds.most.workers)
    with pytest.raises(errors.BadInput, match="share a batch of 2 samples"):
        record.book.check_group(view.bounds.most.workers + 1)


@pytest.mark.parametrize("told", [b"", b"\xc1", b"\x01"])
def test_missing_or_garbled_model_outline_uses_default_facts(told):
    record = training_record()
    record.shared.share(tables.SHARED_KEY, told)
    assert job_view.view(sources(record), now=4.0).facts.dim == 1.0


def test_incomplete_job_has_no_view():
    record = JobRecord(JobSpec(name="job", worker_cpu=0.5, server_cpu=0.5, planning=RULES))
    assert job_view.view(sources(record), now=4.0) is None
    whole = sources(training_record())
    whole.watching.poll(None, [], {}, at=5.0)
    assert job_view.view(whole, now=6.0) is None


def test_memory_is_needed_only_for_jobs_with_memory_limits():
    usage = {WORKER: RoleUsage(role=WORKER, memory=1000)}
    assert job_view.need(sources(training_record(), usage=usage)) == job_view.NO_NEED

    class Ahead(QuietGuards):
        ahead = (
            memory.MemoryForecast(
                server=0, law="steady", static=90.0, live_at_end=900.0, peak=0, limit=1, until=1, crosses_at=None
            ),
        )

    limited = sources(training_record(worker_memory=2**30, server_memory=2**30), guards=Ahead, usage=usage)
    need = job_view.need(limited)
    assert (need.worker, need.server, need.rows) == (1150, 100, 1350)


def test_out_of_memory_kill_is_a_finding_until_the_job_is_scaled():
    record = training_record(worker_memory=2**30)
    record.apply(events.RoleExited(RoleExit(role=WORKER, pid=0, signal="SIGKILL", oom=True)), 5.0)
    found = job_view.findings(sources(record), now=6.0)
    assert [(one.trouble, str(one.role)) for one in found] == [(FindingKind.OOM, "worker-0")]
    record.apply(events.WorkersScaled(2, "by hand"), 7.0)
    assert job_view.findings(sources(record), now=8.0) == ()


def test_refused_guard_action_is_a_finding_for_a_while():
    class Refused(QuietGuards):
        refused = (10.0, events.ServersScaled(3, "memory would run out"), "it trains in step")

    here = sources(training_record(), guards=Refused)
    (found,) = job_view.findings(here, now=20.0)
    assert (found.trouble, found.servers) == (FindingKind.MEMORY, 3)
    assert job_view.findings(here, now=200.0) == ()


def test_role_start_times_are_measured():
    record = JobRecord(JobSpec(name="job", worker_cpu=0.5, server_cpu=0.5, planning=RULES))
    watching = Profiler(RULES)
    nodes = list(record.state.nodes.values())
    watching.poll(None, nodes, {}, at=1.0)
    record.apply(events.RoleJoined(SERVER), 3.0)
    record.apply(events.RoleJoined(WORKER), 6.0)
    watching.poll(None, nodes, {}, at=6.0)
    assert {(one.kind, one.cpu) for one in watching.launches} == {(RoleKind.WORKER, 0.5), (RoleKind.SERVER, 0.5)}
    assert all(one.seconds == 6.0 for one in watching.launches)
    watching.poll(None, nodes, {}, at=9.0)
    assert len(watching.launches) == 2


def test_profile_of_a_shape_is_kept_when_the_job_changes_shape():
    watching = Profiler(RULES)
    first = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5)
    second = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=0.5)
    steps = 0
    for at in range(20):
        watching.poll(first if at < 10 else second, [], {WORKER: RoleUsage(role=WORKER, cpu_s=0.25 * at)}, at=float(at))
        steps += 10
        watching.on_report(
            WORKER, 0, MemberReport(step=steps, samples=8 * steps, seconds={"total": float(at)}), at=float(at)
        )
    shapes = [one.shape for one in watching.window(8).profiles()]
    assert set(shapes) == {first, second} and shapes == sorted(shapes, key=lambda shape: shape.worker_cpu)
    assert watching.cpu_used(Life(WORKER, 0)) == pytest.approx(0.25)
    assert watching.cpu_used(Life(SERVER, 0)) is None


def test_server_cores_are_measured_only_after_the_workers_first_steps():
    watching = Profiler(RULES)
    shape = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5)
    busy_s = 0.0
    for at in range(20):  # for ten seconds data is read and the first steps are slow: the server has nothing to do
        busy_s += 0.3 if at > 10 else 0.0
        watching.poll(shape, [], {SERVER: RoleUsage(role=SERVER, cpu_s=busy_s)}, at=float(at))
        steps = 1 if at < 10 else 10 * at
        watching.on_report(
            WORKER, 0, MemberReport(step=steps, samples=8 * steps, seconds={"total": float(at)}), at=float(at)
        )
    assert watching.cpu_used(Life(SERVER, 0)) == pytest.approx(0.3)


def test_reports_during_a_change_are_ignored():
    watching = Profiler(RULES)
    watching.poll(None, [], {}, at=1.0)
    watching.on_report(WORKER, 0, MemberReport(step=5, samples=5), at=2.0)
    assert watching.window(1).profiles() == ()
