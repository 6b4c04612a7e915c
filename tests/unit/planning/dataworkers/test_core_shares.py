"""Data worker cores of several jobs come from what workers and servers leave."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.data.data_workers import FeedShare
from springtide.planning.dataworkers import allocation
from tests.unit.planning import views


def share(**more):
    return FeedShare(**({"trainers": 1, "speed": 2.0, "capable": 10.0, "cpu": 1.0, "least": 1.0} | more))


def job(name, fed=None):
    return replace(views.running(), name=name, fed=fed)


def shared(jobs, cpu, metric="maxtp", before=None):
    return allocation.shared(jobs, before or {}, cpu, allocation.load(metric))


def test_each_job_gets_what_it_can_use_while_cores_last():
    allotted, known = shared([job("one", share()), job("two", share(speed=5.0)), job("none")], 100.0)
    assert allotted.cores == {"one": 5.0, "two": 2.0}
    assert known["one"].gain == 2.0 and "none" not in known


def test_metric_decides_who_gets_scarce_cores():
    jobs = [job("slow", share(speed=1.0)), job("fast", share(speed=4.0, capable=40.0))]
    by_speed, _ = shared(jobs, 6.0, "maxtp")
    evenly, _ = shared(jobs, 6.0, "fair")
    assert by_speed.cores == {"slow": 1.0, "fast": 5.0}
    assert evenly.cores["slow"] > 1.0 and evenly.total == 6.0


def test_gain_of_added_cores_is_learned():
    _, before = shared([job("one", share())], 100.0)
    _, now = shared([job("one", share(speed=2.5, cpu=3.0))], 100.0, before=before)
    assert now["one"].gain == 0.25


def test_no_free_cores_give_every_job_zero_cores():
    allotted, _ = shared([job("one", share())], -3.0)
    assert allotted.cores == {"one": 0.0}


NUMBERS = st.one_of(st.floats(0.0, 100.0), st.sampled_from([math.nan, math.inf, -1.0, 0.0]))


@given(
    told=st.lists(st.tuples(st.integers(-1, 4), NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=6),
    cpu=st.floats(-10.0, 200.0),
    metric=st.sampled_from(["maxtp", "srtf", "fair"]),
)
def test_allotted_cores_stay_within_capacity_for_any_reported_values(told, cpu, metric):
    jobs = [
        job(f"job-{at}", FeedShare(trainers=one[0], speed=one[1], capable=one[2], cpu=one[3], least=one[4]))
        for at, one in enumerate(told)
    ]
    allotted, known = shared(jobs, cpu, metric)
    again, _ = shared(jobs, cpu, metric, before=known)
    for found in (allotted, again):
        assert all(cores >= 0 for cores in found.cores.values())
        assert found.total <= max(0.0, cpu) + 1e-6
