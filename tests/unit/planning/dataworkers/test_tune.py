import msgspec
import pytest

from springtide.domain.feeding import FeedRules, FeedSeen, FeedTarget
from springtide.planning.dataworkers import tune
from springtide.planning.dataworkers.notes import Phase, Tuning


def seen(**fields: float) -> FeedSeen:
    usual = dict(
        at=0.0, trainers=1, data_workers=0, data_worker_cpu=0.0, data_worker_cpu_used=0.0, trainer_cpu=0.0,
        trainer_cpu_used=0.0, steps_per_s=10.0, made_per_s=0.0, capable_per_s=100.0, fill=0.0, wait_share=0.0,
        own_share=0.9, free_cpu=16.0, share_cpu=8.0,
    )  # fmt: skip
    return FeedSeen(**{**usual, **fields})  # type: ignore[arg-type]


def fed(target: FeedTarget, **fields: float) -> FeedSeen:
    there = dict(data_workers=target.data_workers, data_worker_cpu=target.data_worker_cpu, wait_share=0.5)
    return seen(**{**there, **fields})


def test_none_are_started_where_too_little_time_goes_into_what_they_could_do() -> None:
    tuning, target = tune.decide(tune.begin(FeedRules()), seen(own_share=0.04))
    assert target.data_workers == 0 and "4%" in target.why
    assert tuning.phase is Phase.OFF


def test_the_first_is_one_for_each_trainer_with_one_core() -> None:
    _, target = tune.decide(tune.begin(FeedRules()), seen(trainers=3))
    assert (target.data_workers, target.data_worker_cpu) == (3, 1.0)


@pytest.mark.parametrize(("rules", "count"), [(FeedRules(workers=0), 0), (FeedRules(workers=5, cpu=2.0), 5)])
def test_a_number_that_was_asked_for_is_not_tuned(rules: FeedRules, count: int) -> None:
    _, target = tune.decide(tune.begin(rules), seen())
    assert (target.data_workers, target.data_worker_cpu) == (count, rules.cpu)


def test_a_size_that_is_sublinear_is_taken_back_and_more_of_the_last_linear_one_are_wanted() -> None:
    tuning, target = tune.decide(tune.begin(FeedRules()), seen())
    tuning, target = tune.decide(tuning, fed(target, made_per_s=20.0))
    assert (target.data_workers, target.data_worker_cpu) == (1, 2.0)
    tuning, target = tune.decide(tuning, fed(target, made_per_s=21.0))
    assert (target.data_workers, target.data_worker_cpu) == (2, 1.0)
    assert target.most_cpu == 1.0 and "of linear" in target.why


def test_a_queue_that_is_ideal_ends_the_search() -> None:
    tuning, target = tune.decide(tune.begin(FeedRules()), seen())
    tuning, target = tune.decide(tuning, fed(target, made_per_s=100.0, steps_per_s=100.0, wait_share=0.0, fill=1.0))
    assert (target.data_workers, target.data_worker_cpu) == (1, 1.0)
    assert tuning.phase is Phase.STEADY


def test_a_job_that_is_slower_with_them_falls_back_and_says_so() -> None:
    tuning, target = tune.decide(tune.begin(FeedRules(most=1, cpu=1.0)), seen())
    for _ in range(4):
        tuning, target = tune.decide(tuning, fed(target, made_per_s=8.0, steps_per_s=8.0))
        if target.data_workers == 0:
            break
    assert target.data_workers == 0 and "do not pay" in target.why
    tuning, target = tune.decide(tuning, seen())
    assert target.data_workers == 0 and "nothing has changed" in target.why


def test_tuning_can_be_journaled_and_read_again() -> None:
    tuning, target = tune.decide(tune.begin(FeedRules()), seen(trainer_cpu=4.0))
    tuning, _ = tune.decide(tuning, fed(target, trainer_cpu=4.0, made_per_s=20.0))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(tuning), type=Tuning)
    assert again == tuning
