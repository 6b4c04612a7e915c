from springtide.domain.data.data_workers import FeedState
from springtide.planning.dataworkers.observation import (
    Cores,
    StageCores,
    TrainerReport,
    see,
    settled_at,
)


def test_rates_are_differences_of_totals_over_the_interval() -> None:
    words = [
        TrainerReport(0.0, FeedState(taken=5, made=5, looped_s=1.0)),
        TrainerReport(10.0, FeedState(taken=100, made=90, queued=4, room=8, waited_s=2.0, looped_s=10.0)),
        TrainerReport(30.0, FeedState(taken=300, made=290, queued=8, room=8, waited_s=7.0, looped_s=30.0)),
    ]
    seen = see({"worker-0": words}, Cores(stages=(StageCores(2),)), at=30.0, since=10.0)
    assert seen is not None
    assert (seen.steps_per_s, seen.last.made_per_s, seen.last.wait_share, seen.last.fill) == (10.0, 10.0, 0.25, 0.75)
    assert abs(seen.capable_per_s - 10.0 / 0.75) < 1e-9


def test_locally_reading_trainer_would_be_faster_by_its_reading_time() -> None:
    words = [
        TrainerReport(0.0, FeedState()),
        TrainerReport(10.0, FeedState(taken=20, read_s=4.0, stateless_s=1.0, looped_s=10.0)),
    ]
    seen = see({"worker-0": words}, Cores(), at=10.0, since=0.0)
    assert seen is not None
    assert (seen.own_share, seen.steps_per_s, seen.capable_per_s) == (0.5, 2.0, 4.0)


def test_restarted_trainer_and_one_with_a_single_report_are_left_out() -> None:
    anew = [
        TrainerReport(0.0, FeedState(taken=50, looped_s=50.0)),
        TrainerReport(9.0, FeedState(taken=3, looped_s=3.0)),
    ]
    fine = [TrainerReport(0.0, FeedState()), TrainerReport(10.0, FeedState(taken=20, looped_s=10.0))]
    cores = Cores()
    seen = see({"a": anew, "b": fine, "c": fine[:1]}, cores, at=10.0, since=0.0)
    assert seen is not None and seen.trainers == 1 and seen.steps_per_s == 2.0
    assert see({"a": anew, "c": fine[:1]}, cores, at=10.0, since=0.0) is None


def test_reports_soon_after_a_change_are_ignored() -> None:
    words = [
        TrainerReport(float(t), FeedState(taken=0 if t < 10 else 6 * (t - 10), looped_s=float(t))) for t in range(31)
    ]
    seen = see({"a": words}, Cores(), at=30.0, since=settled_at(0.0, 30.0))
    assert seen is not None and seen.steps_per_s == 6.0


def test_reported_wait_above_elapsed_time_keeps_the_trainer_speed_finite() -> None:
    words = [TrainerReport(0.0, FeedState()), TrainerReport(1.0, FeedState(taken=4, waited_s=1.5, looped_s=1.0))]
    seen = see({"a": words}, Cores(), at=1.0, since=0.0)
    assert seen is not None and seen.last.wait_share == 1.0 and seen.capable_per_s == 200.0


def test_stage_is_measured_by_the_queue_behind_it() -> None:
    def words(made: int, waited: float) -> list[TrainerReport]:
        return [
            TrainerReport(
                at,
                FeedState(made=made * at, taken=made * at, queued=1, room=4, waited_s=waited * at, looped_s=1.0 * at),
            )
            for at in (0, 10)
        ]

    told = {"worker-0": words(made=4, waited=0.5)}
    asked = [{"data-worker-0": words(made=3, waited=0.25), "data-worker-2": words(made=1, waited=0.75)}]
    cores = Cores(stages=(StageCores(1, 0.5, 0.4), StageCores(2, 1.0, 0.9)))
    seen = see(told, cores, at=10.0, since=0.0, earlier=asked)
    assert seen is not None
    first, last = seen.stages
    assert (first.consumers, first.workers, first.cpu, first.made_per_s, first.wait_share) == (2, 1, 0.5, 4.0, 0.5)
    assert (last.consumers, last.workers, last.made_per_s, last.wait_share) == (1, 2, 4.0, 0.5)
    assert first.capable_per_s == last.capable_per_s == seen.capable_per_s
    unheard = see(told, cores, at=10.0, since=0.0, earlier=[{}])
    assert unheard is not None and (unheard.stages[0].made_per_s, unheard.stages[0].wait_share) == (0.0, 0.0)
