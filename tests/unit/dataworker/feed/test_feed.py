"""A trainer and its data workers in one process: wanted batches come once and in order."""

import contextlib
import functools
import gc
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed import connections
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.feed.worker import DataWorker, Pipeline, PipelineStage
from springtide.dataworker.transport import channel, handshake, shared_memory
from springtide.domain.data.data_workers import BatchName
from tests.waiting import until

SECRET = b"s" * 32
PATIENCE_S = 60.0


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def doubled(indices):
    return torch.from_numpy(indices) * 2


def serve(*runs, stage=0, **options):
    return DataWorker(
        Pipeline(tuple(PipelineStage(f"s{n}", run) for n, run in enumerate(runs))), stage, SECRET, **options
    )


def batches(count, size=4):
    return [
        WantedBatch(np.arange(n * size, (n + 1) * size), BatchName(epoch=0, shard=0, first=n * size, samples=size))
        for n in range(count)
    ]


def fail_if_called(indices):
    raise AssertionError("the trainer made a batch that it should have been fed")


class FeedWithWorkers:
    """A feed and its data workers, all closed at the end."""

    def __init__(self, *servings, **options):
        self.feed = BatchFeed(SECRET, **options)
        self.servings = []
        for serving in servings:
            self.add(serving)

    def add(self, serving):
        self.servings.append(serving)
        before = self.feed.state.workers
        self.feed.attach(f"dw-{len(self.servings)}", serving.address)
        until(lambda: self.feed.state.workers > before)
        return serving

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.feed.close()
        for serving in self.servings:
            serving.close()


def firsts(made):
    return [int(one[0]) for one in made]


def test_batches_come_in_order_from_several_workers():
    both = threading.Barrier(2)

    def met():
        """Barrier in the first batch, so that neither worker makes all batches."""
        first = iter([both.wait])
        return lambda indices: (next(first, lambda _: None)(PATIENCE_S), doubled(indices))[1]

    with FeedWithWorkers(serve(met()), serve(met())) as fed:
        made = list(fed.feed.read(batches(40), fail_if_called))
        assert firsts(made) == [8 * n for n in range(40)]
        state = fed.feed.state
        assert (state.made, state.taken, state.queued, state.workers) == (40, 40, 0, 2)
        assert all(serving.made for serving in fed.servings)


def test_second_pass_reuses_workers_and_drops_late_answers_of_the_first():
    with FeedWithWorkers(serve(doubled)) as fed:
        early = fed.feed.read(batches(20), fail_if_called)
        assert int(next(early)[0]) == 0
        early.close()
        assert firsts(fed.feed.read(batches(5), fail_if_called)) == [0, 8, 16, 24, 32]


def test_trainer_makes_batches_itself_without_data_workers():
    with FeedWithWorkers() as fed:
        assert firsts(fed.feed.read(batches(3), doubled)) == [0, 8, 16]
        assert fed.feed.state.room == 0 and fed.feed.state.read_s > 0


def test_queued_batches_of_distrusted_data_workers_are_remade_locally():
    own = []
    with FeedWithWorkers(serve(lambda indices: doubled(indices) + 1), room=4) as fed:
        reading = fed.feed.read(batches(12), lambda indices: own.append(int(indices[0])) or doubled(indices))
        wrong = [next(reading), next(reading)]
        until(lambda: fed.feed.state.queued > 0)
        fed.feed.refuse()
        made = list(reading)
    assert firsts(wrong) == [1, 9]
    assert firsts(made) == [8 * n for n in range(2, 12)]
    assert own == [4 * n for n in range(2, 12)]


def test_data_workers_are_used_once_they_join_and_while_wanted():
    own = []
    wants = True
    with FeedWithWorkers() as fed:
        reading = fed.feed.read(batches(12), lambda i: own.append(1) or doubled(i), fed=lambda: wants)
        made = [next(reading), next(reading)]
        fed.add(serve(doubled))
        made += [next(reading) for _ in range(3)]
        wants = False
        made += list(reading)
    assert firsts(made) == [8 * n for n in range(12)]
    assert 2 <= len(own) < 12


def test_pause_keeps_its_position_and_nothing_beyond_it_is_requested_early():
    asked = []

    def wanted():
        for one in [*batches(2), WantedBatch(np.empty(0, np.int64), None), *batches(1)]:
            asked.append(len(one.indices))
            yield one

    with FeedWithWorkers(serve(doubled)) as fed:
        reading = fed.feed.read(wanted(), fail_if_called)
        next(reading), next(reading)
        assert asked == [4, 4, 0]
        assert next(reading) is None
        assert int(next(reading)[0]) == 0
        assert next(reading, "end") == "end"


def test_poison_batch_is_retried_and_reported_in_its_position():
    tried = []

    def poisoned(indices):
        if 8 in indices:
            tried.append(1)
            raise ValueError("row 8 is torn")
        return doubled(indices)

    with FeedWithWorkers(serve(poisoned), serve(poisoned)) as fed:
        made = list(fed.feed.read(batches(5), fail_if_called))
    assert isinstance(made[2], UnreadableBatch) and "ValueError: row 8 is torn" in made[2].error
    assert firsts(made[:2] + made[3:]) == [0, 8, 24, 32]
    assert len(tried) == 2


def test_unsendable_batch_is_reported_by_type_and_path():
    with FeedWithWorkers(serve(lambda indices: {"rows": object()})) as fed:
        (made,) = fed.feed.read(batches(1), fail_if_called)
    assert "batch['rows'] is of type builtins.object" in made.error


def test_batch_of_an_unknown_type_is_made_locally_once():
    def pair(indices):
        return Pair(doubled(indices), torch.ones(1))

    own = []
    with FeedWithWorkers(serve(pair), room=1) as fed:
        made = list(fed.feed.read(batches(6), lambda indices: own.append(1) or pair(indices)))
    assert all(isinstance(one, Pair) for one in made) and len(own) == 1


def test_batch_has_the_same_random_numbers_everywhere_and_the_trainers_stay():
    def noisy(indices):
        return torch.rand(3), np.random.rand(2), torch.from_numpy(indices)

    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    with FeedWithWorkers() as fed:
        own = list(fed.feed.read(batches(4), noisy))
        assert torch.equal(before, torch.random.get_rng_state())
    with FeedWithWorkers(serve(noisy)) as fed:
        theirs = list(fed.feed.read(batches(4), fail_if_called))
    for one, other in zip(own, theirs, strict=True):
        assert torch.equal(one[0], other[0]) and np.array_equal(one[1], other[1])
    assert not torch.equal(own[0][0], own[1][0])


def test_closing_a_data_worker_loses_no_batch():
    with FeedWithWorkers(serve(doubled), serve(doubled)) as fed:
        reading = fed.feed.read(batches(60), doubled)
        made = [next(reading) for _ in range(10)]
        fed.servings[0].close()
        made += [next(reading) for _ in range(10)]
        fed.servings[1].close()
        made += list(reading)
    assert firsts(made) == [8 * n for n in range(60)]


def test_draining_data_worker_answers_its_steps_and_ends():
    with FeedWithWorkers(serve(doubled), serve(doubled)) as fed:
        reading = fed.feed.read(batches(60), fail_if_called)
        made = [next(reading) for _ in range(10)]
        fed.servings[0].drain()
        made += list(reading)
        assert fed.servings[0].done.wait(PATIENCE_S)
        assert not fed.servings[1].done.is_set()
        until(lambda: fed.feed.state.workers == 1)
    assert firsts(made) == [8 * n for n in range(60)]


def test_detached_data_worker_finishes_and_gets_no_requests():
    with FeedWithWorkers(serve(doubled), serve(doubled)) as fed:
        reading = fed.feed.read(batches(60), fail_if_called)
        made = [next(reading) for _ in range(10)]
        fed.feed.detach("dw-1")
        until(lambda: not fed.servings[0]._trainers)
        before = fed.servings[0].made
        made += list(reading)
        assert fed.servings[0].made == before
    assert firsts(made) == [8 * n for n in range(60)]


def test_idle_data_worker_takes_over_from_a_hanging_one():
    held = threading.Event()

    def hangs(indices):
        held.wait(PATIENCE_S)
        return doubled(indices)

    with FeedWithWorkers(serve(hangs), serve(doubled)) as fed:
        assert firsts(fed.feed.read(batches(12), fail_if_called)) == [8 * n for n in range(12)]
        held.set()


def test_read_ahead_of_an_idle_trainer_is_bounded_by_memory():
    with FeedWithWorkers(serve(lambda indices: torch.zeros(250_000)), room=100, most_bytes=5_500_000) as fed:
        reading = fed.feed.read(batches(200), fail_if_called)
        for _ in range(20):
            next(reading)
        room = fed.feed.state.room
        assert 2 <= room <= 5
        until(lambda: fed.feed.state.queued == room - 1)  # it has one in its hand
        assert fed.servings[0].made <= 20 + room
        reading.close()


def test_local_error_is_raised_once_data_workers_are_gone():
    held = threading.Event()

    def torn(indices):
        raise ValueError("torn")

    with FeedWithWorkers(serve(lambda indices: held.wait(PATIENCE_S) and doubled(indices))) as fed:
        reading = fed.feed.read(batches(5), torn)
        closing = threading.Thread(target=fed.servings[0].close)  # waits for the batch in the making
        closing.start()
        with pytest.raises(ValueError, match="torn"):
            list(reading)
        held.set()
        closing.join()


def test_wait_for_a_batch_can_be_bounded():
    held = threading.Event()
    with FeedWithWorkers(serve(lambda indices: held.wait(PATIENCE_S) and doubled(indices))) as fed:
        reading = fed.feed.read(batches(1), fail_if_called, timeout_s=0.05)
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            next(reading)
        held.set()


class Keeping:
    """A first stage that returns the leaves it was asked for."""

    def __call__(self, indices):
        return doubled(indices)

    def keeping(self, indices, asks):
        return doubled(indices), list(asks)


def test_extra_leaf_requests_go_to_the_first_stage():
    with FeedWithWorkers(serve(Keeping()), asks=lambda name: (3, 5)) as fed:
        assert [one[1] for one in fed.feed.read(batches(2), fail_if_called)] == [[3, 5]] * 2


def test_batch_can_be_asked_for_again_while_a_data_worker_is_left():
    with FeedWithWorkers(serve(Keeping())) as fed:
        (wanted,) = batches(1)
        assert fed.feed.ask_again(wanted.indices, wanted.name, (1,))[1] == [1]
    assert fed.feed.ask_again(wanted.indices, wanted.name, (1,)) is None


@pytest.fixture
def remote_connections(monkeypatch):
    """Trainers and data workers as if on different hosts."""
    monkeypatch.setattr(connections, "connect", functools.partial(handshake.connect, shared=False))


def test_remote_batches_are_correct_if_the_dataset_reuses_its_buffer(remote_connections):
    kept = torch.zeros(100_000)

    def again(indices):
        return kept.fill_(int(indices[0]))

    with FeedWithWorkers(serve(again)) as fed:
        made = list(fed.feed.read(batches(30), fail_if_called))
        assert all(bool((one == 4 * n).all()) for n, one in enumerate(made))


def test_trainer_that_does_not_read_its_answers_blocks_no_other(remote_connections):
    serving = serve(lambda indices: torch.zeros(2_000_000))
    deaf = handshake.connect(serving.address, SECRET, shared=False)
    for step in range(10):
        ask = connections.AskBatch(step, np.arange(4).tobytes(), None)
        connections.send_message(deaf, ask)
    with FeedWithWorkers(serving) as fed:
        assert len(list(fed.feed.read(batches(10), fail_if_called))) == 10
        assert serving.made < 20  # the deaf one gets what is under way, and no more
    deaf.close()


def test_trainer_sending_too_many_or_invalid_requests_is_disconnected():
    held = threading.Event()
    serving = serve(lambda indices: held.wait(PATIENCE_S))
    ask = connections.AskBatch(0, np.arange(4).tobytes(), None)
    for word, count in ((ask, 100), (connections.BatchFailed(0, "?"), 1)):
        caller = handshake.connect(serving.address, SECRET)
        with contextlib.suppress(OSError):
            for _ in range(count):
                connections.send_message(caller, word)
        with pytest.raises(EOFError):
            caller.recv()
        caller.close()
    held.set()
    serving.close()


def test_two_trainers_are_served_alternately():
    serving = serve(doubled)
    with FeedWithWorkers(serving) as one, FeedWithWorkers() as other:
        other.feed.attach("dw", serving.address)
        until(lambda: other.feed.state.workers)
        first, second = one.feed.read(batches(20), fail_if_called), other.feed.read(batches(20), fail_if_called)
        pairs = list(zip(first, second, strict=True))
        assert [firsts(pair) for pair in pairs] == [[8 * n, 8 * n] for n in range(20)]
        next(first, None), next(second, None)


def test_middle_stage_forwards_requests_and_computes_itself_without_a_source():
    calls = []

    def first(indices):
        calls.append(threading.current_thread())
        return doubled(indices)

    def second(made):
        return made + 1

    last = serve(first, second, stage=1)
    before = serve(first, second, stage=0)
    with FeedWithWorkers(last) as fed:
        assert firsts(fed.feed.read(batches(3), fail_if_called)) == [1, 9, 17]
        assert before.made == 0 and last.made == 3
        last.attach("first-0", before.address)
        until(lambda: last._before.workers)  # that the other has let it in does not mean that it knows yet
        assert firsts(fed.feed.read(batches(20), fail_if_called)) == [8 * n + 1 for n in range(20)]
        assert before.made >= 20
        before.close()
        assert firsts(fed.feed.read(batches(3), fail_if_called)) == [1, 9, 17]


def test_invalid_messages_are_refused_by_name():
    with pytest.raises(errors.BadInput, match="stage=1: expected a stage from 0 to 0"):
        serve(doubled, stage=1)
    with pytest.raises(errors.BadInput, match="a queue of 0 batches"):
        BatchFeed(SECRET, room=0)


def test_data_worker_of_another_job_is_ignored():
    stranger = DataWorker(Pipeline((PipelineStage("s", doubled),)), 0, b"x" * 32)
    with FeedWithWorkers() as fed:
        fed.feed.attach("dw", stranger.address)
        assert firsts(fed.feed.read(batches(2), doubled)) == [0, 8]
        assert fed.feed.state.workers == 0
    stranger.close()


def test_dropped_feed_leaves_no_thread():
    before = threading.active_count()
    serving = serve(doubled)
    BatchFeed(SECRET).attach("dw", serving.address)  # nobody has it any more
    gc.collect()
    serving.close()
    until(lambda: threading.active_count() == before)


@pytest.mark.parametrize("shared", [True, False])
def test_oversized_batch_is_reported_and_later_batches_arrive(monkeypatch, shared):
    monkeypatch.setattr(connections, "connect", functools.partial(handshake.connect, shared=shared))
    monkeypatch.setattr(channel, "MAX_PAYLOAD", 1 << 16)

    def large_once(indices):
        return torch.zeros(100_000) if 8 in indices else doubled(indices)

    with FeedWithWorkers(serve(large_once)) as fed:
        made = list(fed.feed.read(batches(5), fail_if_called))
    assert isinstance(made[2], UnreadableBatch) and "bytes" in made[2].error
    assert firsts(made[:2] + made[3:]) == [0, 8, 24, 32]


def test_trainer_that_cannot_be_answered_is_disconnected_and_reconnects(monkeypatch):
    take, failed = shared_memory.OutgoingSegments.take, []

    def no_descriptors(self, size):
        if not failed:
            failed.append(size)
            raise OSError(24, "Too many open files")
        return take(self, size)

    monkeypatch.setattr(shared_memory.OutgoingSegments, "take", no_descriptors)
    with FeedWithWorkers(serve(lambda indices: torch.full((10_000,), int(indices[0])))) as fed:
        made = list(fed.feed.read(batches(4), lambda indices: torch.full((10_000,), int(indices[0]))))
        until(lambda: fed.feed.state.workers == 1)
    assert failed and [int(one[0]) for one in made] == [0, 4, 8, 12]


def test_error_with_unencodable_characters_is_reported():
    def torn(indices):
        raise FileNotFoundError("no file named a\udcff")

    with FeedWithWorkers(serve(torn)) as fed:
        made = list(fed.feed.read(batches(2), fail_if_called))
    assert all("no file named a\\udcff" in one.error for one in made)
