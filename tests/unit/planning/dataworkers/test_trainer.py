from springtide.planning.dataworkers import trainer
from springtide.planning.dataworkers.notes import TrainerNotes
from tests.unit.planning.dataworkers.walks import seen


def test_it_shrinks_at_once_to_a_step_above_what_it_uses_then_step_by_step_and_one_step_back() -> None:
    notes, _ = trainer.shrink(TrainerNotes(), seen(trainer_cpu=8.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 4.0
    notes, _ = trainer.shrink(notes, seen(trainer_cpu=4.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 3.0
    notes, _ = trainer.shrink(notes, seen(trainer_cpu=3.0, trainer_cpu_used=2.6), 1.0)
    assert notes.cpu == 2.0 and not notes.done
    notes, why = trainer.shrink(notes, seen(trainer_cpu=2.0, trainer_cpu_used=2.0, steps_per_s=7.0), 1.0)
    assert notes.cpu == 3.0 and notes.done and "back to 3 cores" in why
    assert trainer.spare(notes, trainers=2) == 10.0


def test_it_is_compared_with_its_speed_at_first_so_that_small_losses_do_not_add_up() -> None:
    notes, speeds = TrainerNotes(), [10.0, 9.7, 9.55, 9.3]
    for i, speed in enumerate(speeds):
        cores = 8.0 - i
        notes, _ = trainer.shrink(notes, seen(trainer_cpu=cores, trainer_cpu_used=cores, steps_per_s=speed), 1.0)
    assert notes.done and notes.cpu == 6.0


def test_it_ends_with_one_step_of_cores_and_where_none_are_held() -> None:
    notes, _ = trainer.shrink(TrainerNotes(), seen(trainer_cpu=1.0, trainer_cpu_used=0.1), 1.0)
    assert notes.done and notes.cpu == 1.0
    notes, why = trainer.shrink(TrainerNotes(), seen(trainer_cpu=0.0), 1.0)
    assert notes.done and notes.cpu is None and "not held" in why


def test_it_grows_only_when_its_cores_are_used_and_free_ones_exist() -> None:
    hot = seen(trainer_cpu=2.0, trainer_cpu_used=1.9)
    assert trainer.may_grow(TrainerNotes(), hot, 1.0)
    assert not trainer.may_grow(TrainerNotes(), seen(trainer_cpu=2.0, trainer_cpu_used=1.0), 1.0)
    assert not trainer.may_grow(TrainerNotes(), seen(trainer_cpu=2.0, trainer_cpu_used=1.9, free_cpu=0.5), 1.0)
    notes, _ = trainer.grow(TrainerNotes(), hot, 1.0)
    assert notes.cpu == 3.0
    kept, _ = trainer.judge(notes, seen(trainer_cpu=3.0, steps_per_s=12.0))
    assert kept.cpu == 3.0 and not kept.in_vain
    back, _ = trainer.judge(notes, seen(trainer_cpu=3.0, steps_per_s=10.2))
    assert back.cpu == 2.0 and back.in_vain and not trainer.may_grow(back, hot, 1.0)
