from springtide.planning.dataworkers import tuning_rules
from springtide.planning.dataworkers.tuning_rules import PATIENCE, StageLimits, StageNotes
from tests.unit.planning.dataworkers.walks import stage

ROOM = StageLimits(cores=64.0, size=8.0, most=None)


def test_as_many_are_wanted_as_make_what_is_taken_at_most_twice_as_many_at_once() -> None:
    notes, why = tuning_rules.tune_count(
        StageNotes(workers=1, cpu=1.0), stage(made_per_s=10.0, capable_per_s=50.0), ROOM
    )
    assert notes.workers == 2 and "6 would keep up" in why
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=20.0, capable_per_s=50.0), ROOM)
    notes, _ = tuning_rules.tune_count(notes, stage(workers=4, made_per_s=40.0, capable_per_s=50.0), ROOM)
    assert notes.workers == 6


def test_growth_that_brings_nothing_is_taken_back_and_not_tried_again() -> None:
    notes, _ = tuning_rules.tune_count(StageNotes(workers=2, cpu=1.0), stage(workers=2, made_per_s=20.0), ROOM)
    notes, why = tuning_rules.tune_count(notes, stage(workers=4, made_per_s=20.5), ROOM)
    assert (notes.workers, notes.ceiling) == (2, 2) and "their number is not the limit" in why
    for _ in range(5):
        notes, why = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=20.0), ROOM)
        assert notes.workers == 2
    assert "more brought no gain" in why


def test_growth_that_brings_part_of_it_keeps_as_many_as_make_as_much() -> None:
    notes, _ = tuning_rules.tune_count(StageNotes(workers=4, cpu=1.0), stage(workers=4, made_per_s=40.0), ROOM)
    notes, _ = tuning_rules.tune_count(notes, stage(workers=8, made_per_s=58.0), ROOM)
    assert notes.workers == 6


def test_surplus_data_workers_leave_later_and_return_at_once_if_missed() -> None:
    full = stage(workers=4, cpu_used=0.3, made_per_s=100.0, capable_per_s=100.0, wait_share=0.0, fill=1.0)
    notes = StageNotes(workers=4, cpu=1.0, settled=True)
    for _ in range(PATIENCE - 1):
        notes, _ = tuning_rules.tune_count(notes, full, ROOM)
        assert notes.workers == 4
    notes, _ = tuning_rules.tune_count(notes, full, ROOM)
    assert notes.workers == 2
    notes, why = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=70.0, wait_share=0.3), ROOM)
    assert (notes.workers, notes.floor) == (4, 4) and "too few" in why
    for _ in range(5):
        notes, _ = tuning_rules.tune_count(notes, full, ROOM)
        assert notes.workers == 4


def test_a_job_that_was_tuned_grows_only_when_it_waits_long_and_much() -> None:
    notes = StageNotes(workers=2, cpu=1.0, settled=True)
    notes, why = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=92.0, wait_share=0.08), ROOM)
    assert notes.workers == 2 and "little enough" in why
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=70.0, wait_share=0.3), ROOM)
    assert notes.workers == 2
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=70.0, wait_share=0.3), ROOM)
    assert notes.workers == 3
