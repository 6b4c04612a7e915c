"""Drive a scheduler over a stream."""

import numpy as np

from springtide.embedding.schedule import scheduler
from springtide_lab.bench.cache import id_streams, schedule


def drive_stream(**changed):
    stream = id_streams.make("zipf-1.05", samples=8 * 64)
    choose = changed.pop("choose", None)
    chosen = schedule.settings(stream, workers=4, **changed)
    return schedule.drive(schedule.features(stream, batch=64), chosen, warmup=3, choose=choose)


def test_vanilla_training_sends_more_than_laia_with_a_plan():
    vanilla = drive_stream(policy="random", on_demand=False)
    assert drive_stream().transmissions < drive_stream(on_demand=False).transmissions < vanilla.transmissions


def test_warm_up_steps_are_not_counted():
    assert len(drive_stream().seconds) == len(drive_stream().took) == 5


def test_schedule_chooser_gets_measured_times_and_is_obeyed():
    heard = []

    def choose(history):
        heard.append(len(history))
        return 7

    kept = drive_stream(choose=choose)
    assert heard == list(range(8)) and (kept.tables == 7).all()


def test_adaptive_run_gets_the_plan_time_and_a_share_of_allocation_time():
    static = drive_stream()
    stream = id_streams.make("zipf-1.05", samples=8 * 64)
    batches = schedule.features(stream, batch=64)
    given, kept = schedule.adaptive(batches, schedule.settings(stream, workers=4), static, share=0.5, warmup=3)
    assert given > max(np.quantile([t.rest_s for t in static.took], 0.5), 0)
    assert kept.tables.max() <= 26 and isinstance(kept.took[0], scheduler.ScheduleTime)
