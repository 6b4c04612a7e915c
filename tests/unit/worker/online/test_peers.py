"""Shuffle peers over real sockets: batches, acknowledgements, strangers and invalid messages."""

import contextlib
import datetime
import os
import socket
import threading

import numpy as np
import pytest

from springtide.data.stream.records import Records
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard
from springtide.platforms.agent import credentials
from springtide.rpc.transport import auth, frames
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from springtide.worker.online import peers
from springtide.worker.online.peers import Peers
from springtide.worker.online.shuffle_unit import RecordRun, ShuffleUnit
from tests.unit.rpc.strangers import PAUSE_S, is_dropped, is_dropped_while_it_drips, strangers
from tests.waiting import until

SECRET = b"s" * 32
CARD = DatasetCard(samples=1, batch_size=10)


def records(first, count=10, size=8):
    ends = np.arange(1, count + 1, dtype=np.int64) * size
    offsets = np.arange(first, first + count, dtype=np.int64)
    return Records(np.zeros(count * size, np.uint8), ends - size, ends, offsets, np.zeros(count))


@contextlib.contextmanager
def worker(name, *, secret=SECRET, queue=(1, 2), certificates=""):
    tracker = LeaseTracker()
    tracker.begin_pass(CARD)
    unit = ShuffleUnit(tracker, strategy="advanced", queue=queue)
    way = Peers(unit, secret, name, host="127.0.0.1", certificates=certificates)
    unit.connect(way)
    unit.tracker, unit.way = tracker, way
    try:
        yield unit
    finally:
        unit.close()


def meet(*units):
    addresses = {unit.way._own.name: unit.way.address for unit in units}
    for unit in units:
        unit.way.follow(addresses)
    until(lambda: all(len(unit._shuffle.peers) == len(units) - 1 for unit in units))


def offer(unit, partition, count):
    unit.tracker.add_grants(CARD, [Grant(partition, 0, partition, 0, 2**40)])
    for _ in range(count):
        _, claim = unit.tracker.claim(10)
        unit.offer(RecordRun(claim, partition, records(claim.begin)))


def certificates_in(folder, job="job"):
    credentials.lay_out(credentials.make(job, at=datetime.datetime.now(datetime.UTC)), folder)
    return str(folder / "worker")


def offset_of(unit):
    return unit.tracker.report().progress[0].offset


@pytest.mark.parametrize("secure", [False, True])
def test_surplus_batches_are_trained_by_a_peer_and_reported_to_their_owner(secure, tmp_path):
    own = certificates_in(tmp_path) if secure else ""
    with worker("worker-0.0", certificates=own) as one, worker("worker-1.0", certificates=own) as two:
        meet(one, two)
        offer(one, 5, 4)
        until(lambda: two.use.queue == 2)
        came = [two.take(5), two.take(5)]
        assert all(run.owner == "worker-0.0" and run.partition == 5 for run in came)
        assert came[0].records.to_bytes() == records(came[0].claim.begin).to_bytes()
        own = [one.take(5), one.take(5)]
        assert {run.claim.begin for run in [*came, *own]} == {0, 10, 20, 30}
        two.trained([run.claim for run in came])
        one.trained([run.claim for run in own])
        until(lambda: offset_of(one) == 40)
        assert one.idle and two.idle and one.use.forwarded == 2 and two.use.received == 2
        assert one.use.forwarded_bytes >= 2 * 80


def test_peer_with_certificates_of_another_authority_is_refused(tmp_path):
    with (
        worker("worker-0.0", certificates=certificates_in(tmp_path / "one")) as one,
        worker("worker-1.0", certificates=certificates_in(tmp_path / "two")) as two,
    ):
        tried = threading.Event()
        one.way._call = heard(one.way._call, tried)
        one.way.follow({"worker-1.0": two.way.address})
        assert tried.wait(60)
        assert not one._shuffle.peers and not two.way._callers


def heard(call, tried):
    async def calling(*arguments):
        try:
            await call(*arguments)
        finally:
            tried.set()

    return calling


def test_full_peer_is_sent_no_batches():
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        offer(two, 1, 2)
        meet(one, two)
        offer(one, 5, 4)
        assert one.use.queue == 4 and one.use.forwarded == 0
        assert two.take(5) and two.take(5)
        until(lambda: one.use.forwarded == 2)


def test_batches_come_back_when_their_peer_leaves():
    with worker("worker-0.0") as one:
        with worker("worker-1.0") as two:
            meet(one, two)
            offer(one, 5, 4)
            until(lambda: two.use.queue == 2)
        until(lambda: one.use.queue == 4)
        assert not one._shuffle.peers


def test_draining_peer_returns_waiting_batches():
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        meet(one, two)
        offer(one, 5, 4)
        until(lambda: two.use.queue == 2)
        assert two.drain(1)
        until(lambda: one.use.queue == 4)
        assert not one._shuffle.peers["worker-1.0"].ready and two.idle


def test_batches_come_back_from_a_silent_peer(monkeypatch):
    monkeypatch.setattr(peers, "SILENT_S", 0.3)
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        meet(one, two)
        offer(one, 5, 4)
        until(lambda: two.use.queue == 2)
        held = threading.Event()
        two.way._soon(held.wait, 20)
        until(lambda: one.use.queue == 4)
        assert one._shuffle.peers["worker-1.0"].slow
        held.set()
        until(lambda: not one._shuffle.peers["worker-1.0"].slow)


def test_worker_starved_of_cpu_does_not_declare_peers_silent(monkeypatch):
    monkeypatch.setattr(peers, "SILENT_S", 0.6)
    monkeypatch.setattr(peers, "ALIVE_S", 0.2)
    monkeypatch.setattr(peers, "AWAY_S", 0.1)
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        meet(one, two)
        offer(one, 5, 4)
        until(lambda: two.use.queue == 2)
        held = threading.Event()
        for each in (two, one):  # as on a machine where nobody gets to run
            each.way._soon(held.wait, 1.0)
        ticked = threading.Event()
        one.way._soon(one.way._loop.call_later, 2 * peers.TICK_S, ticked.set)
        assert ticked.wait(20)
        assert one.use.came_home == 0


def test_restarted_peer_is_called_at_its_new_address():
    with worker("worker-0.0") as one:
        with worker("worker-1.0") as two:
            meet(one, two)
        with worker("worker-1.1") as again:
            meet(one, again)
            assert list(one._shuffle.peers) == ["worker-1.1"]


def test_peer_of_another_job_is_refused(caplog):
    with worker("worker-0.0") as one, worker("worker-1.0", secret=b"other" * 8) as two:
        one.way.follow({"worker-1.0": two.way.address})
        two.way.follow({"worker-0.0": one.way.address})
        until(lambda: sum("a stranger: " in told for told in caplog.messages) >= 2)  # each has turned the other away
        assert not one._shuffle.peers and not two._shuffle.peers


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b""], ids=["http", "huge", "none"]
)
def test_stranger_connections_cost_no_resources(nonsense):
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        host, port = one.way.address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(nonsense)
            meet(one, two)


def test_forwarded_batch_that_contradicts_its_claim_is_refused():
    whole = records(10).to_bytes()
    good = peers.BatchForwarded(BatchClaim(0, 0, 10, 20), 0, whole)
    assert peers.run_of(good, "worker-1.0").claim == BatchClaim(0, 0, 10, 20, 0)
    for claim in [(0, 0, 20, 30, 0), (0, 0, 0, 15, 0), (0, 0, 20, 10, 0), (-1, 0, 10, 20, 0), (0, 15, 10, 20, 0)]:
        with pytest.raises(frames.BadFrame):
            peers.run_of(peers.BatchForwarded(BatchClaim(*claim), 0, whole), "worker-1.0")
    with pytest.raises(frames.BadFrame, match="cannot be read"):
        peers.run_of(peers.BatchForwarded(BatchClaim(0, 0, 10, 20), 0, whole[:-1]), "worker-1.0")


def test_forked_child_holds_no_peer_connection():
    with worker("worker-0.0") as one, worker("worker-1.0") as two:
        meet(one, two)
        asked, says = os.pipe()
        child = os.fork()
        if not child:
            os.close(says)
            os.read(asked, 1)
            os._exit(0)
        os.close(asked)
        two.close()
        until(lambda: not one._shuffle.peers)
        os.close(says)
        os.waitpid(child, 0)


def test_workers_connect_despite_many_stranger_calls(monkeypatch):
    monkeypatch.setattr(auth, "MOST", 8)
    monkeypatch.setattr(auth, "DEADLINE_S", 600.0)
    with worker("worker-0") as one, strangers(one.way.address, 50) as made, worker("worker-1") as other:
        meet(one, other)
        assert is_dropped(made[0]) and not is_dropped(made[-1], PAUSE_S)
    monkeypatch.setattr(auth, "DEADLINE_S", 0.3)
    with worker("worker-0") as one:
        assert is_dropped_while_it_drips(one.way.address)
