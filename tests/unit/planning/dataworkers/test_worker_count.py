from springtide.planning.dataworkers import tuning_rules
from springtide.planning.dataworkers.tuning_rules import PATIENCE, StageLimits, StageNotes
from tests.unit.planning.dataworkers.tuning_steps import stage

ROOM = StageLimits(cores=64.0, size=8.0, most=None)


def test_worker_count_grows_to_demand_at_most_doubling() -> None:
    notes, why = tuning_rules.tune_count(
        StageNotes(workers=1, cpu=1.0), stage(made_per_s=10.0, capable_per_s=50.0), ROOM
    )
    assert notes.workers == 2 and "6 would keep up" in why
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=20.0, capable_per_s=50.0), ROOM)
    notes, _ = tuning_rules.tune_count(notes, stage(workers=4, made_per_s=40.0, capable_per_s=50.0), ROOM)
    assert notes.workers == 6


def test_growth_without_gain_is_reverted_and_not_retried() -> None:
    notes, _ = tuning_rules.tune_count(StageNotes(workers=2, cpu=1.0), stage(workers=2, made_per_s=20.0), ROOM)
    notes, why = tuning_rules.tune_count(notes, stage(workers=4, made_per_s=20.5), ROOM)
    assert (notes.workers, notes.ceiling) == (2, 2) and "their number is not the limit" in why
    for _ in range(5):
        notes, why = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=20.0), ROOM)
        assert notes.workers == 2
    assert "more brought no gain" in why


def test_growth_with_partial_gain_keeps_only_the_useful_workers() -> None:
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


def test_tuned_job_grows_only_after_long_substantial_waits() -> None:
    notes = StageNotes(workers=2, cpu=1.0, settled=True)
    notes, why = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=92.0, wait_share=0.08), ROOM)
    assert notes.workers == 2 and "little enough" in why
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=70.0, wait_share=0.3), ROOM)
    assert notes.workers == 2
    notes, _ = tuning_rules.tune_count(notes, stage(workers=2, made_per_s=70.0, wait_share=0.3), ROOM)
    assert notes.workers == 3
