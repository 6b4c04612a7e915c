"""Generated jobs match the papers' statistics, and every constant names its source."""

import math
import runpy

import numpy as np
import pytest

from springtide.domain.core.shape import Shape
from springtide.planning.perf_model.equations import Shapes
from springtide.sim.engine import systems
from springtide.sim.world import parameters, workload
from springtide.sim.world import world as world_model
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import FaultCondition
from tests.architecture import sources

WORLD = ClusterWorld()


@pytest.fixture(scope="module")
def drawn_jobs():
    """Of many seeds: a few kinds of jobs make up much of one."""
    return [job for seed in range(10) for job in workload.jobs(WORLD, 300, seed)]


def share(found):
    return float(np.mean([*found]))


def test_four_fifths_of_jobs_use_less_than_half_of_their_cpu_and_memory(drawn_jobs):
    speeds = [(job, world_model.speed(job, job.requested, FaultCondition(hot=job.faults.hot))) for job in drawn_jobs]
    little = share((s.worker_cores + s.server_cores) / job.requested.cpu < 0.5 for job, s in speeds)
    assert little == pytest.approx(0.8, abs=0.03)
    full = [world_model.server_bytes(job, job.requested.servers, job.samples) for job in drawn_jobs]
    sizes = [job.requested.server_memory for job in drawn_jobs]
    assert share(use < 0.5 * size for use, size in zip(full, sizes, strict=True)) == pytest.approx(0.8, abs=0.03)


def test_five_to_eight_percent_of_jobs_run_out_of_memory(drawn_jobs):
    assert (
        0.05
        <= share(math.isfinite(world_model.full_at(job, job.requested, job.faults.hot)) for job in drawn_jobs)
        <= 0.08
    )


def test_earlier_jobs_share_users_and_kinds_but_are_distinct():
    day, before = workload.jobs(WORLD, 200, 3), workload.jobs(WORLD, 200, 3, earlier=True)
    assert {job.kind for job in day} & {job.kind for job in before}
    assert not {job.samples for job in day} & {job.samples for job in before}
    tables = {job.kind: job.memory.table_bytes for job in day}
    assert all(tables.get(job.kind, job.memory.table_bytes) == job.memory.table_bytes for job in before)


def test_faults_are_as_frequent_as_in_the_papers(drawn_jobs):
    assert share(job.faults.hot > 1 for job in drawn_jobs) == pytest.approx(WORLD.faults.hot_share, abs=0.03)
    assert share(job.faults.straggles_at < 1 for job in drawn_jobs) == pytest.approx(
        WORLD.faults.straggler_share, abs=0.02
    )
    assert share(job.faults.starved for job in drawn_jobs) == pytest.approx(WORLD.requests.starved_share, abs=0.02)
    starved = [job for job in drawn_jobs if job.faults.starved]
    speeds = [world_model.speed(job, job.requested) for job in starved]
    busy = [
        s.server_cores / (j.requested.servers * j.requested.server_cpu) for j, s in zip(starved, speeds, strict=True)
    ]
    assert share(each > 0.8 for each in busy) > 0.95


def test_jobs_arrive_in_order_over_a_day_and_users_return():
    drawn = workload.jobs(WORLD, 1500, seed=0)
    arrivals = [job.arrives_at for job in drawn]
    assert arrivals == sorted(arrivals) and arrivals[-1] <= 1500 / WORLD.jobs.jobs_a_day * parameters.DAY_S
    assert len({job.kind for job in drawn}) <= WORLD.jobs.users * WORLD.jobs.families_a_user
    assert all(job.requested.workers >= 1 and job.samples > 0 for job in drawn)


def test_wide_and_deep_matches_the_papers_speed_and_lookup_share():
    model = parameters.model("widedeep")
    job = workload.one(WORLD, model, requested=model.tuned)
    speed = world_model.speed(job, model.tuned)
    assert speed.steps_s == pytest.approx(250)
    assert speed.terms[3] / speed.step_s == pytest.approx(parameters.LOOKUP_SHARE)


@pytest.mark.parametrize(
    ("workers", "servers", "cores", "steps"), [(1, 1, 19.4, 6.2), (8, 2, 18.3, 47.8), (10, 2, 18.3, 56)]
)
def test_xdeepfm_matches_the_three_points_of_the_table(workers, servers, cores, steps):
    job = workload.one(WORLD, parameters.model("xdeepfm"), requested=parameters.TUNED["xdeepfm"])
    server_cpu = 32.0 if servers == 1 else 16.0
    shape = Shape(workers=workers, servers=servers, worker_cpu=cores, server_cpu=server_cpu)
    assert world_model.speed(job, shape).steps_s == pytest.approx(steps, rel=0.04)


@pytest.mark.parametrize("name", parameters.MODELS)
def test_vectorized_speeds_match_single_shapes(name):
    job = workload.one(WORLD, parameters.model(name), requested=parameters.TUNED[name])
    random = np.random.default_rng(0)
    listed = [
        Shape(workers=int(w), servers=int(p), worker_cpu=float(a), server_cpu=float(b))
        for w, p, a, b in zip(*(random.integers(1, 33, size=(4, 50))), strict=True)
    ]
    many = Shapes(*np.array([(s.workers, s.servers, s.worker_cpu, s.server_cpu) for s in listed], dtype=float).T)
    assert systems.true_steps_s(job, many) == pytest.approx([world_model.speed(job, shape).steps_s for shape in listed])


def test_every_constant_of_the_world_names_its_source():
    for _, row in parameters.CONSTANTS.values():
        assert row.metadata["unit"]
        assert any(word in row.metadata["source"] for word in ("000", "001", "assumed", "the same")), row.name


def test_design_page_prints_the_current_constants():
    tool = runpy.run_path(str(sources.ROOT / "tools" / "simulator_page.py"))
    text = tool["PAGE"].read_text()
    assert text == tool["page"](text), "run tools/simulator_page.py"


def test_memory_is_full_at_the_predicted_sample():
    model = parameters.model("widedeep")
    job = workload.one(WORLD, model, requested=model.tuned)
    small = Shape(workers=1, servers=2, worker_cpu=1, server_cpu=1, server_memory=3 << 30)
    full = world_model.full_at(job, small)
    assert world_model.server_bytes(job, 2, full) == pytest.approx(3 << 30)
    assert world_model.full_at(job, model.tuned) == math.inf
