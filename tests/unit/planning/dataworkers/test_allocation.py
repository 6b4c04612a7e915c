"""Allot data worker cores among jobs: within capacity, in the metric's order, from measurements."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.dataworkers import allocation
from springtide.planning.dataworkers.allocation import CoreRules, FedJob


def job(name="a", **changes):
    """One GPU that could train 1 step a second, fed by 4 cores that make 0.1 each."""
    known = {"gpus": 1, "speed": 0.4, "capable": 1.0, "cpu": 4.0, "gain": 0.1, "steps_left": 1000.0}
    return FedJob(name=name, **{**known, **changes})


@st.composite
def feds(draw):
    count = draw(st.integers(0, 8))
    found = []
    for place in range(count):
        capable = draw(st.integers(0, 1000)) / 100
        cpu = draw(st.integers(0, 40))
        found.append(
            FedJob(
                name=f"job-{place}",
                gpus=draw(st.integers(1, 8)),
                capable=capable,
                cpu=float(cpu),
                speed=draw(st.integers(0, 1000)) / 1000 * capable,
                gain=draw(st.none() | st.integers(0, 1000).map(lambda part: part / 1000)),
                steps_left=draw(st.floats(0, 1e6)),
                least=float(draw(st.integers(0, 3))),
            )
        )
    return found


@given(feds(), st.floats(0, 100), st.sampled_from(sorted(allocation.METRICS)), st.sampled_from([0.25, 1.0, 2.0]))
def test_data_worker_cores_never_exceed_the_available_ones_or_a_full_queue(jobs, cpu, name, grain):
    rules = CoreRules(grain=grain)
    found = allocation.allot(jobs, cpu, allocation.METRICS[name], rules)
    assert found.total <= cpu + 1e-6 and set(found.cores) == set(found.why) == {each.name for each in jobs}
    for each in jobs:
        cores = found.cores[each.name]
        assert cores >= 0 and math.isclose(cores / grain, round(cores / grain), abs_tol=1e-6)
        if cores > max(each.least, each.cpu) + grain:
            assert each.room, "a job whose queue is full got more"
    assert found == allocation.allot(jobs, cpu, allocation.METRICS[name], rules), "the same jobs, the same answer"


@given(feds(), st.floats(0, 100), st.sampled_from(sorted(allocation.METRICS)))
def test_cores_are_left_over_only_when_no_job_has_room(jobs, cpu, name):
    found = allocation.allot(jobs, cpu, allocation.METRICS[name])
    if cpu - found.total >= 1:
        assert not any(
            each.at(found.cores[each.name]) < each.capable * (1 - 1e-6)
            and (each.slope > 0 or found.cores[each.name] < each.cpu - 1e-6)
            and each.speed > 0
            for each in jobs
        )


def test_fair_metric_raises_all_jobs_equally_for_any_need():
    modest, hungry = job("modest", capable=0.8), job("hungry", capable=8.0)  # 8 and 80 cores at their ideal
    given = allocation.allot([modest, hungry], 44.0, allocation.fair)
    shares = [one.at(given.cores[one.name]) / one.capable for one in (modest, hungry)]
    assert shares[0] == pytest.approx(shares[1], abs=0.13), "a core is an eighth of what one of them wants"


def test_maxtp_metric_feeds_the_job_that_gains_most_on_most_gpus():
    jobs = [job("weak", gain=0.05, speed=0.2), job("strong"), job("wide", gpus=4, gain=0.05, speed=0.2)]
    found = allocation.allot(jobs, 12, allocation.maxtp)
    assert found.cores == {"weak": 1.0, "strong": 1.0, "wide": 10.0}
    assert "expected" in found.why["wide"]


def test_srtf_metric_feeds_the_job_with_the_least_remaining_time():
    jobs = [job("long"), job("short", steps_left=100.0), job("dear", steps_left=200.0, speed=0.08, gain=0.02)]
    found = allocation.allot(jobs, 14, allocation.srtf)
    assert found.cores["short"] == 10 and found.cores["long"] == 3 and found.cores["dear"] == 1


def test_fair_metric_raises_the_job_furthest_behind():
    jobs = [job("slow", speed=0.2, gain=0.05), job("fast")]
    found = allocation.allot(jobs, 12, allocation.fair, CoreRules(keep=0.0))
    slow, fast = (each.at(found.cores[each.name]) for each in jobs)
    assert found.total == 12 and abs(slow - fast) <= 0.2


def test_ties_are_broken_by_seed_and_not_by_order():
    names = [f"job-{place}" for place in range(6)]

    def served(seed, order):
        found = allocation.allot(
            [job(name, cpu=0.0, speed=0.0) for name in order], 8, allocation.maxtp, CoreRules(seed=seed)
        )
        return {name for name, cores in found.cores.items() if cores > 1}

    assert served(3, names) == served(3, names[::-1])
    assert len({frozenset(served(seed, names)) for seed in range(20)}) > 1


def test_cores_are_reassigned_only_for_a_substantial_gain():
    holder, nearly = job("holder", cpu=8.0, speed=0.8), job("nearly", cpu=1.0, speed=0.103, gain=0.103)
    assert allocation.allot([holder, nearly], 9, allocation.maxtp).cores == {"holder": 8.0, "nearly": 1.0}
    better = job("better", cpu=1.0, speed=0.2, gain=0.2)
    found = allocation.allot([holder, better], 9, allocation.maxtp)
    assert found.cores == {"holder": 4.0, "better": 5.0}
    assert "other jobs gain more" in found.why["holder"]


def test_expected_gain_is_the_last_measured_one():
    before = job()
    now = allocation.corrected(before, speed=0.5, capable=1.0, cpu=6.0)  # half of what was expected
    assert now.gain == pytest.approx(0.05) and now.at(10.0) == pytest.approx(0.7)
    assert allocation.corrected(now, speed=0.5, capable=1.0, cpu=6.0).gain == pytest.approx(0.05)
    less = allocation.corrected(before, speed=0.2, capable=1.0, cpu=2.0)
    assert less.gain == pytest.approx(0.1)


def test_gain_is_not_learned_from_a_full_queue():
    nearly = job(cpu=9.0, speed=0.9)
    full = allocation.corrected(nearly, speed=1.0, capable=1.0, cpu=13.0)
    assert not full.room and full.gain == pytest.approx(0.1)
    assert allocation.corrected(full, speed=0.9, capable=1.0, cpu=9.0).gain == pytest.approx(0.1)


def test_unmeasured_job_gets_its_minimum_cores_and_is_measured():
    new = job(cpu=0.0, speed=0.0, gain=None, least=2.0)
    assert allocation.allot([new], 100, allocation.fair).cores == {"a": 2.0}
    seen = allocation.corrected(new, speed=0.25, capable=1.0, cpu=2.0)
    assert seen.gain == pytest.approx(0.125)
    assert allocation.allot([seen], 100, allocation.fair).cores == {"a": 8.0}


def test_failing_or_nan_metric_ranks_its_job_last_with_a_note():
    def broken(step):
        if step.job.name == "a":
            raise RuntimeError("no idea")
        return math.nan if step.job.name == "b" else 0.0

    found = allocation.allot([job("a"), job("b"), job("c")], 12, broken)
    assert found.cores == {"a": 1.0, "b": 1.0, "c": 10.0}
    assert any("no idea" in note for note in found.notes) and any("not a number" in note for note in found.notes)


def test_metrics_are_found_by_name_or_as_module_and_function():
    assert set(allocation.METRICS) >= {"fair", "maxtp", "srtf"}
    assert allocation.load("springtide.planning.dataworkers.allocation:fair") is allocation.load("fair")
    with pytest.raises(errors.UnknownName, match=r"no data worker metric named 'sjf'"):
        allocation.load("sjf")
