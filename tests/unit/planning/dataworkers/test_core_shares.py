"""Cores for data workers of several jobs: what workers and servers leave, and never more than that."""

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


def test_each_job_gets_what_it_can_use_while_there_are_cores():
    allotted, known = shared([job("one", share()), job("two", share(speed=5.0)), job("none")], 100.0)
    assert allotted.cores == {"one": 5.0, "two": 2.0}
    assert known["one"].gain == 2.0 and "none" not in known


def test_where_cores_are_scarce_the_metric_says_who_gets_them():
    jobs = [job("slow", share(speed=1.0)), job("fast", share(speed=4.0, capable=40.0))]
    by_speed, _ = shared(jobs, 6.0, "maxtp")
    evenly, _ = shared(jobs, 6.0, "fair")
    assert by_speed.cores == {"slow": 1.0, "fast": 5.0}
    assert evenly.cores["slow"] > 1.0 and evenly.total == 6.0


def test_what_more_cores_did_bring_is_learned():
    _, before = shared([job("one", share())], 100.0)
    _, now = shared([job("one", share(speed=2.5, cpu=3.0))], 100.0, before=before)
    assert now["one"].gain == 0.25


def test_without_free_cores_there_are_none_and_nothing_fails():
    allotted, _ = shared([job("one", share())], -3.0)
    assert allotted.cores == {"one": 0.0}


NUMBERS = st.one_of(st.floats(0.0, 100.0), st.sampled_from([math.nan, math.inf, -1.0, 0.0]))


@given(
    told=st.lists(st.tuples(st.integers(-1, 4), NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=6),
    cpu=st.floats(-10.0, 200.0),
    metric=st.sampled_from(["maxtp", "srtf", "fair"]),
)
def test_no_more_is_given_than_there_is_whatever_masters_say(told, cpu, metric):
    jobs = [
        job(f"job-{at}", FeedShare(trainers=one[0], speed=one[1], capable=one[2], cpu=one[3], least=one[4]))
        for at, one in enumerate(told)
    ]
    allotted, known = shared(jobs, cpu, metric)
    again, _ = shared(jobs, cpu, metric, before=known)
    for found in (allotted, again):
        assert all(cores >= 0 for cores in found.cores.values())
        assert found.total <= max(0.0, cpu) + 1e-6
