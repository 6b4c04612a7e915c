"""Waiting trainers lend cores and get them back, within capacity."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.planning.dataworkers import allocation
from springtide.planning.dataworkers.allocation import CoreRules, FedJob
from springtide_lab.reproduce.goldminer import cluster
from springtide_lab.reproduce.goldminer.cluster import TrainerCores

METRICS = st.sampled_from(list(allocation.METRICS.values()))


@st.composite
def jobs(draw):
    """Jobs that are fed, each with its trainers."""
    found, trainers = [], {}
    for number in range(draw(st.integers(1, 8))):
        cpu = draw(st.integers(0, 40))
        rate = draw(st.floats(0.01, 0.5))
        name, gpus = f"job-{number}", draw(st.sampled_from([1, 2, 4, 8]))
        speed = min(1.0, cpu * rate / gpus)
        found.append(
            FedJob(
                name=name,
                gpus=gpus,
                speed=speed,
                capable=1.0,
                cpu=float(cpu),
                least=float(gpus),
                steps_left=draw(st.floats(1.0, 500.0)),
            )
        )
        trainers[name] = TrainerCores(gpus, float(draw(st.integers(1, 8))), draw(st.booleans()))
    return found, trainers


@given(jobs(), st.integers(0, 512), METRICS)
def test_shared_cores_stay_within_capacity_and_trainers_keep_what_they_need(made, more, metric):
    feds, trainers = made
    cpu = sum(one.number * one.needs for one in trainers.values()) + more
    given, kept = cluster.share(feds, trainers, float(cpu), metric, CoreRules())
    assert given.total + sum(trainers[name].number * each for name, each in kept.items()) <= cpu + 1e-6
    for fed in feds:
        own, has = trainers[fed.name], kept[fed.name]
        assert min(1.0, own.needs) <= has <= own.needs and (own.lends or has == own.needs)
        assert has >= own.needs * fed.at(given.cores[fed.name]) / fed.capable - 1e-6


@given(jobs(), st.integers(0, 512), METRICS)
def test_without_lending_cores_are_allotted_as_before(made, more, metric):
    feds, trainers = made
    kept = {name: one._replace(lends=False) for name, one in trainers.items()}
    held = sum(one.number * one.needs for one in trainers.values())
    shared = cluster.share(feds, kept, held + more, metric, CoreRules())
    assert shared.data_workers == allocation.allot(feds, float(more), metric)


def test_starved_trainer_lends_cores_and_gets_them_back():
    slow = FedJob(name="slow", gpus=1, speed=0.1, capable=1.0, cpu=6.0, steps_left=900.0)
    quick = FedJob(name="quick", gpus=1, speed=0.5, capable=1.0, cpu=2.0, steps_left=10.0)
    trainers = {"slow": TrainerCores(1, 4.0), "quick": TrainerCores(1, 2.0)}
    given, kept = cluster.share([slow, quick], trainers, 9.0, allocation.srtf, CoreRules())
    assert kept == {"slow": 1.0, "quick": 2.0} and given.cores == {"slow": 2.0, "quick": 4.0}
    given, kept = cluster.share([slow, quick], trainers, 100.0, allocation.srtf, CoreRules())
    assert kept == {"slow": 4.0, "quick": 2.0} and given.cores["slow"] == pytest.approx(60.0)


@pytest.mark.parametrize(("share", "keeps"), [(0.0, 1.0), (0.2, 1.0), (0.5, 2.0), (0.51, 3.0), (1.0, 4.0), (3.0, 4.0)])
def test_trainer_keeps_cores_in_proportion_and_at_least_one(share, keeps):
    assert cluster.keeps(TrainerCores(1, 4.0), share, 1.0) == keeps
    assert cluster.keeps(TrainerCores(1, 0.5), share, 1.0) == 0.5
    assert math.isclose(cluster.keeps(TrainerCores(1, 4.0, lends=False), share, 1.0), 4.0)
