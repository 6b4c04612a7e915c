import msgspec
import pytest

from springtide.domain.data.data_workers import FeedRules
from springtide.planning.dataworkers import tuner
from springtide.planning.dataworkers.tuning_rules import LATE, STRANGE_FOR, Tuning, TuningPhase
from tests.unit.planning.dataworkers.tuning_steps import KEEPS_UP, after_baseline, observed, observed_after, stage


def test_no_data_worker_starts_where_they_could_save_too_little_time() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed(own_share=0.04))
    assert target.data_workers == 0 and "4%" in target.why
    assert tuning.phase is TuningPhase.OFF


def test_tuning_starts_with_one_single_core_data_worker_per_trainer() -> None:
    _, target = tuner.decide(tuner.begin(FeedRules()), observed(trainers=3))
    assert (target.data_workers, target.data_worker_cpu) == (3, 1.0)


@pytest.mark.parametrize(("rules", "count"), [(FeedRules(workers=0), 0), (FeedRules(workers=5, cpu=2.0), 5)])
def test_fixed_number_of_data_workers_is_not_tuned(rules: FeedRules, count: int) -> None:
    _, target = tuner.decide(tuner.begin(rules), observed())
    assert (target.data_workers, target.data_worker_cpu) == (count, rules.cpu)


def test_sublinear_size_is_reverted_and_the_count_raised_instead() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed())
    tuning, target = tuner.decide(tuning, observed_after(target, made_per_s=20.0))
    assert (target.data_workers, target.data_worker_cpu) == (1, 2.0)
    tuning, target = tuner.decide(tuning, observed_after(target, made_per_s=21.0))
    assert (target.data_workers, target.data_worker_cpu) == (2, 1.0)
    assert "of linear" in target.why


def test_ideal_queue_ends_the_search() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed())
    tuning, target = tuner.decide(
        tuning, observed_after(target, made_per_s=100.0, steps_per_s=100.0, wait_share=0.0, fill=1.0)
    )
    assert (target.data_workers, target.data_worker_cpu) == (1, 1.0)
    assert tuning.phase is TuningPhase.STEADY


def test_job_slowed_by_data_workers_removes_them_with_a_reason() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules(most=1, cpu=1.0)), observed())
    for _ in range(4):
        tuning, target = tuner.decide(tuning, observed_after(target, made_per_s=8.0, steps_per_s=8.0))
        if target.data_workers == 0:
            break
    assert target.data_workers == 0 and "not worth their cores" in target.why
    tuning, target = tuner.decide(tuning, observed())
    assert target.data_workers == 0 and "has not changed much" in target.why


def test_tuning_state_survives_journaling() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed(trainer_cpu=4.0))
    tuning, _ = tuner.decide(tuning, observed_after(target, trainer_cpu=4.0, made_per_s=20.0))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(tuning), type=Tuning)
    assert again == tuning


def test_tuner_waits_for_missing_data_workers_until_they_are_late() -> None:
    tuning, target = after_baseline(trainers=4)
    for _ in range(LATE - 1):
        tuning, again = tuner.decide(tuning, observed_after(target, trainers=4, data_workers=2))
        assert again.data_workers == 4 and "wait" in again.why
    tuning, again = tuner.decide(tuning, observed_after(target, trainers=4, data_workers=2))
    assert again.data_workers == 2 and "did not start" in again.why


def test_job_continues_without_data_workers_that_never_start() -> None:
    tuning, target = after_baseline()
    for _ in range(LATE):
        tuning, target = tuner.decide(tuning, observed())
    assert target.data_workers == 0 and "no data worker came" in target.why and tuning.phase is TuningPhase.OFF


def test_data_workers_are_reduced_when_cores_are_taken_away() -> None:
    tuning, target = after_baseline(trainers=4)
    _, target = tuner.decide(tuning, observed_after(target, trainers=4, free_cpu=-2.0))
    assert target.data_workers == 2 and "-2 cores are free" in target.why


def test_data_workers_scale_with_the_number_of_trainers() -> None:
    tuning, target = after_baseline(trainers=2)
    _, target = tuner.decide(tuning, observed_after(target, trainers=4))
    assert target.data_workers == 4 and "in proportion" in target.why


def test_fractional_core_is_used_and_without_one_no_data_worker_starts() -> None:
    _, target = after_baseline(free_cpu=0.5)
    assert (target.data_workers, target.data_worker_cpu) == (1, 0.5)
    _, target = after_baseline(free_cpu=0.1)
    assert target.data_workers == 0 and "no cores are free" in target.why


def test_user_limit_on_data_workers_is_respected() -> None:
    tuning, target = after_baseline(FeedRules(most=2, cpu=1.0), trainers=4)
    assert target.data_workers == 2
    for _ in range(3):
        tuning, target = tuner.decide(tuning, observed_after(target, trainers=4, made_per_s=20.0, steps_per_s=200.0))
        assert target.data_workers == 2


def test_lasting_change_of_the_program_is_profiled_again_with_original_cores() -> None:
    tuning, target = after_baseline(trainer_cpu=4.0)
    while tuning.phase is not TuningPhase.STEADY:
        cores = target.trainer_cpu or 4.0
        tuning, target = tuner.decide(
            tuning, observed_after(target, trainer_cpu=cores, trainer_cpu_used=0.5, **KEEPS_UP)
        )
    tuning, target = tuner.decide(tuning, observed_after(target, trainer_cpu_used=0.5, **KEEPS_UP))
    assert target.trainer_cpu == 1.0
    other = observed_after(target, **{**KEEPS_UP, "capable_per_s": 8.0, "steps_per_s": 8.0})
    for _ in range(STRANGE_FOR - 1):
        tuning, target = tuner.decide(tuning, other)
        assert target.data_workers == 1 and "to see if this lasts" in target.why
    tuning, target = tuner.decide(tuning, other)
    assert (target.data_workers, target.trainer_cpu) == (0, 4.0) and tuning.phase is TuningPhase.BASELINE
    _, target = tuner.decide(tuning, other)
    assert target.data_workers == 0 and "still have to leave" in target.why


def test_changed_program_that_is_still_fed_profitably_keeps_its_data_workers() -> None:
    tuning, target = after_baseline()
    while tuning.phase is not TuningPhase.STEADY:
        tuning, target = tuner.decide(tuning, observed_after(target, **KEEPS_UP))
    tuning, target = tuner.decide(tuning, observed_after(target, **KEEPS_UP))
    for _ in range(STRANGE_FOR):
        tuning, target = tuner.decide(tuning, observed_after(target, **{**KEEPS_UP, "capable_per_s": 300.0}))
        assert target.data_workers == 1
    assert "still worth their cores" in target.why and tuning.phase is TuningPhase.STEADY


def test_checkpoint_is_not_taken_for_a_changed_program() -> None:
    tuning, target = after_baseline()
    while tuning.phase is not TuningPhase.STEADY:
        tuning, target = tuner.decide(tuning, observed_after(target, **KEEPS_UP))
    for slow in (False, True, True, False, True):
        usual = {**KEEPS_UP, "capable_per_s": 20.0 if slow else 100.0}
        tuning, target = tuner.decide(tuning, observed_after(target, **usual))
        assert target.data_workers == 1


def test_job_without_benefit_is_reconsidered_when_it_reads_more() -> None:
    tuning, target = after_baseline(own_share=0.05)
    for _ in range(STRANGE_FOR):
        tuning, target = tuner.decide(tuning, observed(own_share=0.5))
    assert tuning.phase is TuningPhase.BASELINE
    tuning, target = tuner.decide(tuning, observed(own_share=0.5))
    assert target.data_workers == 1


def test_nothing_is_decided_while_a_job_does_not_train() -> None:
    tuning, target = after_baseline()
    again, target = tuner.decide(tuning, observed(steps_per_s=0.0))
    assert again == tuning and target.data_workers == 1 and "nothing is being trained" in target.why


def test_stages_start_equal_and_the_bottleneck_stage_grows() -> None:
    tuning, target = after_baseline(stages=(stage(workers=0, cpu=0.0), stage(workers=0, cpu=0.0)))
    assert target.stages == ((1, 1.0), (1, 1.0))
    waits_for_the_first = (stage(wait_share=0.5), stage(wait_share=0.6))
    tuning, target = tuner.decide(tuning, observed_after(target, stages=waits_for_the_first))
    assert target.stages == ((1, 2.0), (1, 1.0)) and "stage 1 of 2" in target.why
    the_last_is_the_limit = (stage(cpu=2.0, wait_share=0.0), stage(wait_share=0.6))
    tuning, target = tuner.decide(tuning, observed_after(target, stages=the_last_is_the_limit))
    assert target.stages == ((1, 2.0), (1, 2.0)) and "stage 2 of 2" in target.why
    both = (stage(cpu=2.0, wait_share=0.0), stage(cpu=2.0, wait_share=0.0))
    tuning, target = tuner.decide(tuning, observed_after(target, stages=both, steps_per_s=100.0))
    assert target.stages == ((1, 2.0), (1, 2.0)) and tuning.phase is TuningPhase.STEADY


def test_gpu_stage_workers_are_limited_by_available_gpus() -> None:
    stages = (stage(workers=0, cpu=0.0), stage(workers=0, cpu=2.0, gpu=True))
    tuning, target = after_baseline(stages=stages, free_gpu=1, free_cpu=32.0, trainers=2)
    assert target.stages == ((2, 1.0), (1, 2.0))
    short = (stage(workers=2, wait_share=0.0), stage(workers=1, cpu=2.0, gpu=True))
    tuning, target = tuner.decide(tuning, observed_after(target, stages=short, free_gpu=0, trainers=2))
    assert target.stages == ((2, 1.0), (1, 2.0)) and "no more cores" in target.why
    tuning, target = tuner.decide(tuning, observed_after(target, stages=short, free_gpu=3, trainers=2))
    tuning, target = tuner.decide(tuning, observed_after(target, stages=short, free_gpu=3, trainers=2))
    assert target.stages == ((2, 1.0), (2, 2.0))


def test_data_workers_that_deliver_nothing_are_not_keeping_up() -> None:
    tuning, target = after_baseline()
    for _ in range(LATE):
        assert target.data_workers == 1
        tuning, target = tuner.decide(tuning, observed_after(target, wait_share=0.0, made_per_s=0.0))
    assert tuning.phase is TuningPhase.OFF and "not one batch came" in target.why


def test_cores_of_starting_data_workers_are_not_counted_as_missing() -> None:
    tuning, target = after_baseline(free_cpu=2.0, share_cpu=1.0)
    tuning, target = tuner.decide(tuning, observed_after(target, free_cpu=1.0, share_cpu=1.0))
    assert target.data_workers == 2
    tuning, target = tuner.decide(tuning, observed_after(target, data_workers=1, free_cpu=0.0, share_cpu=1.0))
    assert target.data_workers == 2 and "wait" in target.why


def test_each_of_two_newly_found_stages_gets_data_workers() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed())
    assert not target.stages
    cut = observed_after(target, stages=(stage(workers=0, cpu=0.0, made_per_s=0.0), stage()))
    tuning, target = tuner.decide(tuning, cut)
    assert [one.workers for one in target.stages] == [1, 1] and "cut into 2 stages" in target.why
    tuning, again = tuner.decide(tuning, observed_after(target, stages=(stage(wait_share=0.0), stage(made_per_s=5.0))))
    assert again.stages[0] == target.stages[0] and "stage 2 of 2" in again.why


def test_no_data_workers_start_without_cores_for_every_stage() -> None:
    tuning, target = tuner.decide(tuner.begin(FeedRules()), observed(free_cpu=1.0))
    cut = observed_after(target, free_cpu=0.0, stages=(stage(workers=0, cpu=0.0, made_per_s=0.0), stage()))
    _, target = tuner.decide(tuning, cut)
    assert target.data_workers == 0 and "each of 2 stages" in target.why
