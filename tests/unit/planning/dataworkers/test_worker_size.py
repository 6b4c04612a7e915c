from springtide.planning.dataworkers import tuning_rules
from springtide.planning.dataworkers.tuning_rules import StageLimits, StageNotes
from tests.unit.planning.dataworkers.tuning_steps import stage

ROOM = StageLimits(cores=64.0, size=4.0, most=None)


def grow_worker(to: float, unit: float = 1.0) -> StageNotes:
    notes = StageNotes(workers=1, cpu=unit)
    while notes.cpu < to - 1e-9:
        notes, _ = tuning_rules.tune_size(notes, stage(cpu=notes.cpu, made_per_s=10.0 * notes.cpu), ROOM, unit)
    return notes


def test_data_worker_grows_while_linear_up_to_a_machines_share() -> None:
    notes, why = tuning_rules.tune_size(grow_worker(4.0), stage(cpu=4.0, made_per_s=39.0), ROOM, 1.0)
    assert notes.sized and notes.cpu == 4.0 and "larger ones are not possible (4 for one)" in why


def test_last_linear_size_is_kept_when_the_next_is_not_linear() -> None:
    notes, why = tuning_rules.tune_size(grow_worker(3.0), stage(cpu=3.0, made_per_s=21.0), ROOM, 1.0)
    assert notes.sized and notes.cpu == 2.0 and "70% of linear: back to 2" in why


def test_growth_ends_with_a_full_queue() -> None:
    notes, why = tuning_rules.tune_size(grow_worker(2.0), stage(cpu=2.0, made_per_s=12.0, wait_share=0.01), ROOM, 1.0)
    assert notes.sized and notes.cpu == 2.0 and "are enough" in why


def test_growth_ends_without_free_cores() -> None:
    notes, why = tuning_rules.tune_size(
        grow_worker(2.0), stage(cpu=2.0, made_per_s=20.0), ROOM._replace(cores=2.5), 1.0
    )
    assert notes.sized and notes.cpu == 2.0 and "2.5 in all" in why


def test_steps_may_be_fractions_of_a_core() -> None:
    assert abs(grow_worker(0.3, unit=0.1).cpu - 0.3) < 1e-9
