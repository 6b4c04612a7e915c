"""A slice of `make chaos`: two jobs with fixed faults, of which one runs in each test run. Also modes and long runs."""

import pytest

from tests.chaos import faults, modes, nemesis, overload, schedule, soak
from tests.chaos.modes import Mode
from tests.chaos.schedule import Schedule, Step
from tests.process import disks

SOURCES = ["map", "iterable", "log", "kafka"]


def test_few_modes_have_every_pair_of_values_that_a_job_can_have():
    chosen = modes.cover(3, SOURCES)
    assert len(chosen) < 20
    assert set().union(*map(modes.pairs, chosen)) == set().union(*map(modes.pairs, modes.possible(SOURCES)))
    assert modes.cover(3, SOURCES) == chosen != modes.cover(4, SOURCES)


def test_a_seed_repeats_its_modes_and_faults(tmp_path):
    kinds = set(schedule.FAULTS)
    every = [nemesis.Nemesis(seed, tmp_path, sources=SOURCES, kinds=kinds) for seed in (5, 5, 6)]
    again = [[runs.plan(number) for number in range(200)] for runs in every]
    assert again[0] == again[1] != again[2]
    assert {step.fault for _, planned in again[0] for step in planned.steps} == kinds == set(faults.FAULTS)


SLICE = [
    (
        Mode(source="log", cache="4K", tls=True, shared_memory=False),
        [
            Step("kill", "worker", 1, after=5),
            Step("scale", "servers", 1, event="joined"),
            Step("reset", "server", after=3),
            Step("kill both", "master", after=3),
            Step("kill", "server", after=3),
        ],
    ),
    pytest.param(
        Mode(sync="bsp", unit=8),
        [Step("pause", "server", 1, after=7, lasts=5), Step("scale", "workers", 3, after=1), Step("kill", "worker", 1)],
        marks=pytest.mark.soak,
    ),
]


@pytest.mark.process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("mode", "steps"), SLICE, ids=["async", "bsp"])
def test_a_job_keeps_its_promises_under_faults(tmp_path, mode, steps):
    runs = nemesis.Nemesis(7, tmp_path, sources=SOURCES)
    outcome = runs.run(0, mode, Schedule("7:0", steps))
    print(outcome)
    assert not outcome.violations, str(outcome)


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_job_under_light_chaos_neither_slows_down_nor_grows(tmp_path):
    watch, found = soak.soak(tmp_path, 600.0, 1)
    lines, broken = soak.report(watch, 600.0)
    assert not [*found, *broken], "\n".join(lines)


@disks.needs_root
@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_with_too_many_workers_keeps_its_throughput(tmp_path):
    job = overload.Overload(tmp_path, 20.0)
    try:
        assert job.run() == []
    finally:
        job.command.close()
