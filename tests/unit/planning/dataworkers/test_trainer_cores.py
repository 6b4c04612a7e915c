from springtide.planning.dataworkers import tuning_rules
from springtide.planning.dataworkers.tuning_rules import TrainerNotes
from tests.unit.planning.dataworkers.tuning_steps import observed


def test_trainer_cores_shrink_stepwise_and_return_one_step_on_slowdown() -> None:
    notes, _ = tuning_rules.shrink(TrainerNotes(), observed(trainer_cpu=8.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 4.0
    notes, _ = tuning_rules.shrink(notes, observed(trainer_cpu=4.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 3.0
    notes, _ = tuning_rules.shrink(notes, observed(trainer_cpu=3.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 2.0 and not notes.done
    notes, why = tuning_rules.shrink(notes, observed(trainer_cpu=2.0, trainer_cpu_used=2.0, steps_per_s=7.0), 1.0)
    assert notes.cpu == 3.0 and notes.done and "back to 3 cores" in why


def test_trainer_is_compared_with_its_first_speed_so_losses_do_not_accumulate() -> None:
    notes, speeds = TrainerNotes(), [10.0, 9.7, 9.55, 9.3]
    for i, speed in enumerate(speeds):
        cores = 8.0 - i
        notes, _ = tuning_rules.shrink(
            notes, observed(trainer_cpu=cores, trainer_cpu_used=cores, steps_per_s=speed), 1.0
        )
    assert notes.done and notes.cpu == 6.0


def test_shrinking_stops_at_one_core_step_or_without_a_limit() -> None:
    notes, _ = tuning_rules.shrink(TrainerNotes(), observed(trainer_cpu=1.0, trainer_cpu_used=0.1), 1.0)
    assert notes.done and notes.cpu == 1.0
    notes, why = tuning_rules.shrink(TrainerNotes(), observed(trainer_cpu=0.0), 1.0)
    assert notes.done and notes.cpu is None and "no CPU limit" in why


def test_trainer_grows_only_if_its_cores_are_busy_and_others_free() -> None:
    hot = observed(trainer_cpu=2.0, trainer_cpu_used=1.9)
    assert tuning_rules.may_grow(TrainerNotes(), hot, 1.0)
    assert not tuning_rules.may_grow(TrainerNotes(), observed(trainer_cpu=2.0, trainer_cpu_used=1.0), 1.0)
    assert not tuning_rules.may_grow(TrainerNotes(), observed(trainer_cpu=2.0, trainer_cpu_used=1.9, free_cpu=0.5), 1.0)
    notes, _ = tuning_rules.grow(TrainerNotes(), hot, 1.0)
    assert notes.cpu == 3.0
    kept, _ = tuning_rules.judge(notes, observed(trainer_cpu=3.0, steps_per_s=12.0))
    assert kept.cpu == 3.0 and not kept.in_vain
    back, _ = tuning_rules.judge(notes, observed(trainer_cpu=3.0, steps_per_s=10.2))
    assert back.cpu == 2.0 and back.in_vain and not tuning_rules.may_grow(back, hot, 1.0)


def test_trainer_lends_only_cores_it_would_not_use_when_fed_faster() -> None:
    waits = observed(trainer_cpu=8.0, trainer_cpu_used=1.0, steps_per_s=10.0, capable_per_s=50.0)
    assert (
        tuning_rules.lendable(waits, 4.0, 1.0) == 4.0
    )  # 8 for data workers: twice as fast, 2 used, 3 would do and 4 are kept
    assert tuning_rules.lendable(observed(trainer_cpu=8.0, trainer_cpu_used=6.5, capable_per_s=50.0), 4.0, 1.0) == 0.0
    assert tuning_rules.lendable(observed(trainer_cpu=0.0), 4.0, 1.0) == 0.0, "held to no cores, it has none to lend"


def test_cores_lent_without_gain_are_returned_for_good() -> None:
    notes = tuning_rules.lend(TrainerNotes(), observed(trainer_cpu=8.0, steps_per_s=10.0), 5.0, ())
    assert (notes.cpu, notes.held, notes.first) == (3.0, 8.0, 8.0)
    kept, _ = tuning_rules.judge(notes, observed(trainer_cpu=3.0, steps_per_s=14.0))
    assert kept.cpu == 3.0 and not kept.lent_in_vain
    back, why = tuning_rules.judge(notes, observed(trainer_cpu=3.0, steps_per_s=10.2))
    assert back.cpu == 8.0 and back.lent_in_vain and "back to 8 cores" in why
