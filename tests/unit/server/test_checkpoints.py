"""A server's part of checkpoints: full, then incremental; only slots it owns and could write."""

import errno
import itertools
import os
import threading
import time
import types

import numpy as np
import pytest

from springtide import _native
from springtide.checkpoint.format import checkpoint_io
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder
from springtide.server import checkpoints, recovery
from tests.unit.checkpoint import stores

NOTHING = (np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.float32))
"""Tables, keys and gradients of a push that only says something."""


class Role:
    """A server that owns some slots."""

    def __init__(self, slots=range(stores.SLOTS)):
        self.store, self.mine, self.asked, self.hurried = stores.store(), set(slots), [], False

    def owns(self, slot):
        self.asked.append(slot)
        return slot in self.mine


@pytest.fixture
def server(tmp_path):
    role = Role()
    return role, checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN, rest=lambda _: None)


def order(number, base=0, **more):
    return SaveOrder(1, number, base, **more)


def base_numbers(said):
    return {piece.since for piece in said.written.pieces}


def test_first_checkpoint_is_full_and_the_next_incremental(server, tmp_path):
    role, saver = server
    stores.train(role.store, range(500))
    first = saver.save(order(1))
    assert base_numbers(first) == {0} and len(first.written.pieces) == stores.SLOTS and not first.error
    assert [spec.name for spec in first.tables] == ["ids"]
    published = stores.publish(tmp_path, 1, first.written)
    stores.train(role.store, [1, 2, 3])
    second = saver.save(order(2, base=1))
    assert base_numbers(second) == {1} and second.written.size < first.written.size
    stores.publish(tmp_path, 2, second.written, previous=published)
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(tmp_path), 2, range(stores.SLOTS))
    assert stores.contents(again) == stores.contents(role.store)


@pytest.mark.parametrize("harm", ["missing", "torn"])
def test_slots_with_a_missing_earlier_file_are_written_in_full_and_reported(server, tmp_path, harm):
    role, saver = server
    stores.train(role.store, range(500))
    stores.publish(tmp_path, 1, (first := saver.save(order(1))).written)
    path = tmp_path / first.written.file
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    stores.train(role.store, [1, 2, 3])
    second = saver.save(order(2, base=1))
    assert second.lost == (path.name,) and base_numbers(second) == {0}
    published = stores.publish(tmp_path, 2, second.written)
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(tmp_path), 2, range(stores.SLOTS))
    assert stores.contents(again) == stores.contents(role.store)
    third = saver.save(order(3, base=published.number))
    assert third.lost == () and base_numbers(third) == {2}, "what was written since is built on"


def test_one_lost_file_rewrites_only_its_slots(server, tmp_path):
    role, saver = server
    stores.train(role.store, range(500))
    role.mine = set(range(32))
    saver.save(order(1))
    role.mine = set(range(64))
    came = saver.save(order(1, part=1, slots=tuple(range(32, 64))))
    (tmp_path / came.written.file).unlink()
    second = saver.save(order(2, base=1))
    assert second.lost == (came.written.file,)
    assert {piece.slot for piece in second.written.pieces if not piece.since} == set(range(32, 64))


def test_increment_follows_the_last_complete_checkpoint(server):
    role, saver = server
    stores.train(role.store, range(100))
    saver.save(order(1))
    stores.train(role.store, [1])
    assert base_numbers(saver.save(order(2, base=1))) == {1}
    assert base_numbers(saver.save(order(3, base=1))) == {1}, "2 was abandoned: what changed since 1 is needed"
    assert base_numbers(saver.save(order(4, base=0))) == {0}, "a master that knows of none needs all"
    assert base_numbers(saver.save(order(5, base=3))) == {0}, "3 was never told to be complete in time"


def test_chains_stay_short_and_not_all_slots_become_full_at_once(server):
    role, saver = server
    stores.train(role.store, range(20_000))
    longest, full_at_once = {}, []
    for number in range(1, 40):
        stores.train(role.store, [number])
        said = saver.save(order(number, base=number - 1))
        full = [piece.slot for piece in said.written.pieces if not piece.since]
        full_at_once.append(len(full))
        for piece in said.written.pieces:
            longest[piece.slot] = longest.get(piece.slot, 0) + 1 if piece.since else 0
            assert longest[piece.slot] <= 2 * checkpoints.MOST_LINKS
    assert max(full_at_once[1:]) <= stores.SLOTS // 4


def test_large_increments_lead_to_a_full_image(server):
    role, saver = server
    kinds = []
    for number in range(1, 8):
        stores.train(role.store, range(2000))
        kinds.append(base_numbers(saver.save(order(number, base=number - 1))) == {0})
    assert kinds == [True, False, False, True, False, False, True]


def test_server_claims_only_its_own_slots(tmp_path):
    role = Role(slots=range(10))
    said = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN).save(order(1))
    assert [piece.slot for piece in said.written.pieces] == list(range(10))


def test_slot_that_leaves_during_its_copy_is_not_claimed(tmp_path):
    role = Role(slots=range(10))
    saver = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN)
    store = role.store

    class Leaving:
        """The store of a server that loses slot 4 in the middle of its copy."""

        slots = store.slots
        cut, tables = store.cut, store.tables

        def copy_slot(self, slot, *how):
            role.mine.discard(4) if slot == 4 else None
            return store.copy_slot(slot, *how)

    role.store = Leaving()
    said = saver.save(order(1))
    assert [piece.slot for piece in said.written.pieces] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_slot_that_arrives_during_a_save_is_saved_by_its_new_owner(tmp_path):
    role = Role(slots=range(10))
    store = role.store

    class Growing:
        """The store of a server that is given slot 3 while the last of its own is copied."""

        slots = store.slots
        cut, tables = store.cut, store.tables

        def copy_slot(self, *how):
            role.mine.add(3)
            return store.copy_slot(*how)

    role.mine, role.store = {8, 9}, Growing()
    said = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN).save(order(1))
    assert sorted(piece.slot for piece in said.written.pieces) == [3, 8, 9]


def test_slot_received_from_another_server_is_written_in_full(server):
    role, saver = server
    stores.train(role.store, range(500))
    saver.save(order(1))
    role.store.import_slot(role.store.export_slot(7))
    said = saver.save(order(2, base=1))
    assert {piece.slot for piece in said.written.pieces if not piece.since} == {7}


def test_full_disk_is_reported_and_the_next_save_retries(server, tmp_path):
    role, saver = server
    store = role.store

    class Full:
        slots = store.slots
        cut = store.cut

        def copy_slot(self, *_):
            raise OSError(errno.ENOSPC, "No space left on device")

    role.store = Full()
    said = saver.save(order(1))
    assert said.written is None and "No space left on device" in said.error and str(tmp_path) in said.error
    assert list(tmp_path.iterdir()) == []
    role.store = store
    assert base_numbers(saver.save(order(2))) == {0}


def test_failed_save_is_reported_and_leaves_no_file(tmp_path):
    role = Role()
    saver, store = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN), role.store

    class Starved:
        slots, cut, tables = store.slots, store.cut, store.tables

        def copy_slot(self, slot, *how):
            raise MemoryError("no room for a copy")

    role.store = Starved()
    said = saver.save(order(1))
    assert said.written is None and said.error == "MemoryError: no room for a copy"
    assert not list(tmp_path.iterdir())
    role.store = store
    assert saver.save(order(2)).written is not None


def test_finished_shards_take_no_room_in_images(server):
    role, saver = server
    stores.train(role.store, range(64))
    sizes = []
    for number, shards in enumerate((range(1), range(1, 1000)), 1):
        for shard in shards:
            stores.train(role.store, (), batch=(10, shard, 0, 10))
        sizes.append(saver.save(order(number)).written.size)
    assert sizes[0] == sizes[1]
    assert role.store.applied(0)[-1] == (0, 0, 999, None)


def test_slots_keep_their_first_value_marks_through_history_and_restore(server, tmp_path):
    role, saver = server
    first_values = (_native.FIRST_VALUES, stores.TABLE.id, _native.FIRST_VALUES, stores.TABLE.id + 1)
    had = np.arange(stores.SLOTS, dtype=np.uint8) % 2
    role.store.push_once(*NOTHING, [], [(0, _native.FIRST_VALUES, stores.TABLE.id, 1)], had)
    published = None
    for number, shards in enumerate((range(500), range(500, 1000)), 1):
        for shard in shards:
            stores.train(role.store, (), batch=(10, shard, 0, 10))
        written = saver.save(order(number, base=number - 1)).written
        published = stores.publish(tmp_path, number, written, previous=published)
    again = _native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(tmp_path), 2, range(stores.SLOTS))
    for slot in range(stores.SLOTS):
        assert again.applied(slot) == [(0, 0, 999, None), *[first_values] * int(had[slot])]


def test_saver_pauses_between_slots_unless_hurried(tmp_path):
    role, rests = Role(), []
    stores.train(role.store, range(100_000))
    saver = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN, rest=rests.append)
    saver.save(order(1, hurry=True))
    assert not rests
    said = saver.save(order(2))
    assert sum(rests) > said.seconds
    role.hurried = True
    rests.clear()
    saver.save(order(3))
    assert not rests


def test_large_slot_is_saved_in_pieces_with_pauses_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 1000)
    monkeypatch.setattr(checkpoint_io, "PIECE_BYTES", 1000)
    monkeypatch.setattr(checkpoints, "REST_S", 0.0)
    ticks = itertools.count(0.0, 0.001)  # a busy machine would make some rests longer, and those after them unnecessary
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks), thread_time=time.thread_time)
    monkeypatch.setattr(checkpoints, "time", clock)
    role, rests, whole = Role(), [], []
    stores.train(role.store, range(20_000))
    store = role.store

    class Counted:
        slots = store.slots
        cut, tables = store.cut, store.tables

        def copy_slot(self, *how):
            whole.append(store.copy_slot(*how))
            return whole[-1]

    role.store = Counted()
    said = checkpoints.SlotSaver(role, tmp_path, "server-0.0", run=stores.RUN, rest=rests.append).save(order(1))
    pieces = sum(-(-piece.length // 1000) for piece in said.written.pieces)
    assert pieces > 5 * stores.SLOTS and len(whole) > 5 * stores.SLOTS and sum(whole) == stores.SLOTS
    assert len(rests) == len(whole) + pieces, "after each part that is copied and each that is written"
    stores.publish(tmp_path, 1, said.written)
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(tmp_path), 1, range(stores.SLOTS))
    assert stores.contents(again) == stores.contents(store)


def test_saved_checkpoint_is_readable(server, tmp_path):
    role, saver = server
    stores.train(role.store, range(100))
    stores.publish(tmp_path, 1, saver.save(order(1)).written)
    assert checkpoint_io.latest(str(tmp_path)).manifest.number == 1


def test_saver_thread_lowers_only_its_own_priority():
    seen = []

    def ask(request):
        seen.append(os.sched_getscheduler(0))
        return messages.HeartbeatReply(stop=True)

    class Saver:
        def tidy(self, reply):
            pass

    before = os.sched_getscheduler(0)
    checkpoints.start(Saver(), ask, threading.Event()).join()
    assert seen == [os.SCHED_BATCH] and os.sched_getscheduler(0) == before
