"""Automatic number of data workers of a loader: none for cheap batches, more while the loop waits."""

from springtide.dataworker.loader.worker_pool import Autosize
from springtide.domain.data.data_workers import FeedState


def run(cores, *, make_s, train_s, seconds=120.0):
    """A loop on a virtual clock: data workers make batches, and the loop waits for missing ones."""
    sizer, workers, said = Autosize(cores, every_s=3.0), 0, []
    at = read = waited = 0.0
    made = taken = 0
    while at < seconds:
        if workers == 0:
            read += make_s
            at += make_s + train_s
        else:
            step = max(train_s, make_s / workers)
            waited += step - train_s
            at += step
            made += 1
        taken += 1
        full = workers > 0 and make_s / workers < train_s
        state = FeedState(
            made=made,
            taken=taken,
            queued=8 if full else 0,
            room=8 if workers else 0,
            workers=workers,
            read_s=read,
            waited_s=waited,
            looped_s=at,
        )
        target = sizer.propose(at, state)
        if target is not None and target.data_workers != workers:
            workers = target.data_workers
            said.append((workers, target.why))
    return workers, said


def test_cheap_batches_need_no_data_workers():
    workers, said = run(8, make_s=0.001, train_s=0.1)
    assert (workers, said) == (0, [])


def test_costly_batches_get_enough_workers_to_keep_the_loop_busy():
    workers, said = run(16, make_s=0.2, train_s=0.05)
    assert 4 <= workers <= 6, said


def test_single_core_machine_gets_no_data_workers():
    assert run(1, make_s=0.2, train_s=0.05)[0] == 0


def test_pool_never_has_more_data_workers_than_free_cores():
    workers, said = run(4, make_s=0.4, train_s=0.02)
    assert workers == 3, said
