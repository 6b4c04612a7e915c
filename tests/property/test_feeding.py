"""Data worker tuning converges, stays, and pays off for any program cost."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.data.data_workers import FeedRules, FeedTarget
from springtide.planning.dataworkers import tuner
from springtide.planning.dataworkers.tuning_rules import Tuning, TuningPhase
from tests.property.feeding_world import Program, Staged, World

KINDS = {
    "linear": Program(),
    "plain Python": Program(parallel=1.0),
    "partly parallel": Program(parallel=3.0),
    "cheap": Program(make_s=0.005),
    "bound by transfer": Program(make_s=0.4, wire_per_s=18.0),
    "slower over the wire": Program(make_s=0.4, wire_per_s=9.0),
    "bound by the trainer": Program(compute_s=0.09, make_s=0.4),
    "short of trainer cores": Program(take_s=0.3, compute_s=0.001, make_s=0.1, parallel=1.0),
}


def walk(world: World | Staged, intervals: int, tuning: Tuning | None = None) -> tuple[Tuning, list[FeedTarget]]:
    tuning = tuner.begin(FeedRules()) if tuning is None else tuning
    targets = []
    for i in range(intervals):
        tuning, target = tuner.decide(tuning, world.see(30.0 * i))
        assert target.why
        world.order(target)
        targets.append(target)
    return tuning, targets


def shape(target: FeedTarget) -> tuple[int, float | None, float | None]:
    return target.data_workers, target.data_worker_cpu, target.trainer_cpu


programs = st.builds(
    Program,
    make_s=st.floats(0.001, 1.0),
    compute_s=st.floats(0.005, 0.2),
    take_s=st.floats(0.001, 0.05),
    parallel=st.sampled_from([1.0, 2.0, 3.5, 64.0]),
    wire_per_s=st.sampled_from([5.0, 20.0, 1e9]),
)
worlds = st.builds(
    World,
    program=programs,
    cores=st.sampled_from([10.0, 24.0, 33.5, 128.0]),
    trainers=st.just(1),
    trainer_cpu=st.sampled_from([2.0, 8.0]),
    noise=st.floats(0.0, 0.03),
    late=st.booleans(),
    chance=st.integers(0, 2**32).map(random.Random),
) | st.builds(
    World,
    program=programs,
    cores=st.sampled_from([32.0, 96.0]),
    trainers=st.sampled_from([2, 4]),
    trainer_cpu=st.just(4.0),
    noise=st.floats(0.0, 0.03),
    late=st.booleans(),
    chance=st.integers(0, 2**32).map(random.Random),
)


@given(worlds)
@settings(max_examples=100, deadline=None)
def test_tuning_converges_near_the_best_and_never_below_the_start(world: World) -> None:
    _, targets = walk(world, 70)
    story = [(shape(target), target.why) for target in targets]
    assert len({shape(target) for target in targets[-20:]}) == 1, story[-20:]
    assert world.speed() >= (1.0 - 0.08) * world.trainers * world.unfed()[0], story
    assert world.speed() >= 0.65 * world.ideal(), story  # sizes are steps: a fragment of a machine may be left
    counts = [target.data_workers for target in targets]
    steps = [b - a for a, b in itertools.pairwise(counts) if b != a]
    turns = sum(1 for a, b in itertools.pairwise(steps) if (a > 0) != (b > 0))
    assert turns <= 4, story


@pytest.mark.parametrize("kind", KINDS)
def test_tuning_converges_for_each_kind_of_program(kind: str) -> None:
    world = World(program=replace(KINDS[kind]))
    tuning, _ = walk(world, 60)
    assert tuning.phase is (TuningPhase.OFF if kind in ("cheap", "slower over the wire") else TuningPhase.STEADY)


@given(
    st.builds(
        Staged,
        make_s=st.tuples(st.floats(0.01, 0.3), st.floats(0.01, 0.3)),
        capable=st.floats(5.0, 60.0),
        noise=st.floats(0.0, 0.03),
        chance=st.integers(0, 2**32).map(random.Random),
    )
)
@settings(max_examples=60, deadline=None)
def test_stages_are_tuned_one_by_one_until_the_trainer_is_fed(world: Staged) -> None:
    alone = world.speed()
    tuning, targets = walk(world, 70)
    story = [(target.stages, target.why) for target in targets]
    assert len({target.stages for target in targets[-15:]}) == 1, story
    if tuning.phase is TuningPhase.OFF:
        assert world.capable < 1.2 * alone, story
    elif sum(world.make_s) * world.capable * 1.5 < 0.8 * world.cores:
        assert world.speed() >= 0.85 * world.capable, story


def test_waiting_trainer_lends_cores_when_none_are_free() -> None:
    world = World(program=Program(make_s=0.2), cores=12.0, trainer_cpu=8.0, noise=0.0)
    alone = world.unfed()[0]
    _, targets = walk(world, 40)
    story = [(shape(target), target.why) for target in targets]
    assert any("no cores are free, and trainers that wait" in why for _, why in story), story
    assert world.trainer_cpu < 8.0 and world.speed() >= 1.8 * max(4.0 / 0.2, alone), story


def test_trainer_slowed_by_lending_gets_its_cores_back() -> None:
    class Bursts(World):
        """Its trainer uses little in the mean, and much for a moment in every step."""

        def capable(self) -> float:
            return super().capable() * (1.0 if self.trainer_cpu >= 8.0 else 0.4)

    world = Bursts(program=Program(make_s=0.2), cores=12.0, trainer_cpu=8.0, noise=0.0)
    _, targets = walk(world, 40)
    assert any(target.why.endswith("back to 8 cores") for target in targets), [target.why for target in targets]
    assert world.trainer_cpu == 8.0 and targets[-1].data_workers * (targets[-1].data_worker_cpu or 0.0) <= 4.0
