"""A data worker connection: complete batches by shared memory or socket, and strangers refused."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch

from springtide import errors
from springtide.dataworker.transport import channel, codec, handshake
from springtide.rpc.transport import addresses, auth, frames
from tests.unit.rpc.strangers import PAUSE_S, is_dropped, is_dropped_while_it_drips, strangers

SECRET = b"a job's secret"


@contextlib.contextmanager
def connected_channels(*, shared: bool, **options: Any) -> Iterator[tuple[channel.BatchChannel, channel.BatchChannel]]:
    """A caller and the listener's side of its connection."""
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        caller = handshake.connect(listening.address, SECRET, shared=shared, **options)
        accepted = listening.accept()
        with contextlib.closing(caller), contextlib.closing(accepted):
            yield caller, accepted


def batch(seed: int = 0, tensors: int = 5, rows: int = 5000) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {f"f{index}": torch.randint(0, 1000, (rows + index,), generator=drawn) for index in range(tensors)}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def pass_on(sender: channel.BatchChannel, receiver: channel.BatchChannel, tree: Any) -> Any:
    """Through the connection, by two threads: a payload may be larger than the sockets' buffers."""
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, 1, None, codec.pack(tree))
        received = receiver.recv()
        sending.result()
    assert received.payload is not None
    return received.payload.tree()


@pytest.mark.parametrize("shared", [True, False])
def test_messages_and_batches_go_both_ways(shared: bool) -> None:
    with connected_channels(shared=shared) as (caller, accepted):
        assert caller.local == accepted.local == shared
        for sender, receiver in ((caller, accepted), (accepted, caller)):
            sender.send(7, {"step": 3, "indices": [1, 2]})
            assert receiver.recv() == (7, {"step": 3, "indices": [1, 2]}, None)
            sent = batch()
            came = pass_on(sender, receiver, sent)
            assert equal(came, sent)


@pytest.mark.parametrize("shared", [True, False])
def test_batches_of_any_size_arrive_whole(shared: bool) -> None:
    trees = [None, torch.empty(0), torch.arange(3), batch(1, tensors=700, rows=3), batch(2, rows=200_000), ["a"] * 9999]
    with connected_channels(shared=shared) as (caller, accepted):
        for tree in trees:
            assert equal(pass_on(caller, accepted, tree), tree)


def test_similar_batches_are_received_into_prepared_memory() -> None:
    trees = [
        batch(0),
        batch(1),
        {"other": torch.arange(30_000)},
        batch(2),
        ["b"] * 9999,
        batch(3),
        torch.arange(3),
        batch(4),
    ]
    with connected_channels(shared=False) as (caller, accepted), ThreadPoolExecutor(1) as pool:
        kept = []
        for tree in trees:
            sending = pool.submit(caller.send, 1, {"step": len(kept)}, codec.pack(tree))
            received = accepted.recv({})
            sending.result()
            assert received.fields == {"step": len(kept)} and received.payload is not None
            kept.append(received.payload.tree())
            caller.send(9, "a word between two batches")
            assert accepted.recv({}) == (9, "a word between two batches", None)
        assert all(equal(came, sent) for came, sent in zip(kept, trees, strict=True)), "each has memory of its own"


@pytest.mark.parametrize("cut", [5, 40, 3000])
def test_peer_dying_within_a_message_ends_receiving(cut: int) -> None:
    with connected_channels(shared=False) as (caller, accepted):
        message = codec.pack(batch(0))
        head = channel.HEAD.pack(channel.MAGIC, channel.VERSION, 1, 0, 1, len(message.header), message.size, 0)
        caller._sock.sendall((head + msgspec.msgpack.encode(None) + message.header + bytes(message.size))[:cut])
        caller.close()
        with pytest.raises(EOFError):
            accepted.recv({})


def test_memory_is_reused_when_a_batch_is_dropped() -> None:
    with connected_channels(shared=True) as (caller, accepted):
        for seed in range(20):
            came = pass_on(caller, accepted, sent := batch(seed))
            assert equal(came, sent)
            del came
        assert len(caller._outgoing.segments) == 1


@pytest.mark.parametrize("shared", [True, False])
def test_receiver_that_keeps_every_batch_gets_them_unchanged(shared: bool) -> None:
    with connected_channels(shared=shared, shared_bytes=1 << 20) as (caller, accepted):
        kept = [pass_on(caller, accepted, batch(seed)) for seed in range(12)]
        for seed, came in enumerate(kept):
            assert equal(came, batch(seed))
        held = sum(segment.capacity for segment in caller._outgoing.segments.values())
        assert held <= 1 << 20


def test_batch_outlives_its_connection() -> None:
    with connected_channels(shared=True) as (caller, accepted):
        came = pass_on(caller, accepted, batch())
    assert torch.equal(came["f0"], batch()["f0"])


def test_sender_may_modify_tensors_right_after_sending() -> None:
    with connected_channels(shared=True) as (caller, accepted):
        tree = batch()
        caller.send(1, None, codec.pack(tree))
        tree["f0"].zero_()
        received = accepted.recv()
        assert torch.equal(received.payload.tree()["f0"], batch()["f0"])  # type: ignore[union-attr]


def test_many_threads_send_at_once() -> None:
    with connected_channels(shared=True) as (caller, accepted), ThreadPoolExecutor(4) as pool:
        sends = [pool.submit(caller.send, 1, seed, codec.pack(batch(seed))) for seed in range(16)]
        came = {received.fields: received.payload.tree() for received in (accepted.recv() for _ in sends)}  # type: ignore[union-attr]
        assert sorted(came) == list(range(16))
        assert all(torch.equal(came[seed]["f1"], batch(seed)["f1"]) for seed in came)
        [send.result() for send in sends]


@pytest.mark.parametrize("shared", [True, False])
def test_closed_peer_ends_receiving_and_sending(shared: bool) -> None:
    with connected_channels(shared=shared) as (caller, accepted):
        caller.close()
        with pytest.raises(EOFError):
            accepted.recv()
        with pytest.raises(OSError):
            for _ in range(100):
                accepted.send(1, None, codec.pack(batch()))
        with pytest.raises(OSError):
            caller.send(1)


def test_closing_wakes_the_receiving_thread() -> None:
    with connected_channels(shared=True) as (caller, _), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(caller.recv)
        caller.close()
        assert isinstance(waiting.exception(timeout=60), EOFError)


def test_caller_with_another_secret_is_refused_with_an_error() -> None:
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        with pytest.raises(auth.Rejected, match="wrong secret"):
            handshake.connect(listening.address, b"another job's")
        with (
            contextlib.closing(handshake.connect(listening.address, SECRET)),
            contextlib.closing(listening.accept()) as one,
        ):
            assert one.local, "and it goes on"


def test_caller_refuses_a_listener_that_does_not_know_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(handshake.connect, f"127.0.0.1:{impostor.getsockname()[1]}", SECRET)
        sock, _ = impostor.accept()
        handshake._send(sock, handshake.HandshakeChallenge(handshake.VERSION, b"n" * 32))
        assert isinstance(handshake._receive(sock), handshake.HandshakeAnswer)
        handshake._send(sock, handshake.FeedWelcome(b"no proof", "somewhere"))
        assert "does not know the job's secret" in str(calling.exception(timeout=60))
        sock.close()


def test_trainers_are_served_despite_many_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MOST", 8)
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        before = handshake.connect(listening.address, SECRET)
        first = listening.accept()
        with strangers(listening.address, 50) as made:
            caller = handshake.connect(listening.address, SECRET, shared=False)
            accepted = listening.accept()
            for one, other in ((before, first), (caller, accepted)):
                one.send(1, "here")
                assert other.recv().fields == "here"
                one.close()
                other.close()
            assert is_dropped(made[0]) and not is_dropped(made[-1], PAUSE_S)


def test_slow_trickling_stranger_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "DEADLINE_S", 0.3)
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        assert is_dropped_while_it_drips(listening.address)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""])
def test_strangers_are_disconnected_and_block_no_trainer(said: bytes) -> None:
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        stranger = socket.create_connection(addresses.parse(listening.address))
        stranger.sendall(said)
        with (
            contextlib.closing(handshake.connect(listening.address, SECRET)),
            contextlib.closing(listening.accept()) as one,
        ):
            assert one.local
        with stranger, contextlib.suppress(ConnectionResetError):
            while said and stranger.recv(4096):
                pass


def test_invalid_address_is_named() -> None:
    with pytest.raises(errors.BadInput, match="'nowhere'"):
        handshake.connect("nowhere", SECRET)


def test_closing_a_listener_wakes_waiting_accepts() -> None:
    listening = handshake.FeedListener(SECRET)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(listening.accept) for _ in range(2)]
        listening.close()
        assert all(isinstance(one.exception(timeout=60), EOFError) for one in waiting)


HEADS = {
    "another magic": channel.HEAD.pack(b"HTTP", 1, 1, 0, 0, 0, 0, 0),
    "another version": channel.HEAD.pack(channel.MAGIC, 9, 1, 0, 0, 0, 0, 0),
    "huge fields": channel.HEAD.pack(channel.MAGIC, 1, 1, 0, 2**32 - 1, 0, 0, 0),
    "a huge header": channel.HEAD.pack(channel.MAGIC, 1, 1, 0, 1, 2**32 - 1, 0, 0),
    "a huge payload": channel.HEAD.pack(channel.MAGIC, 1, 1, 0, 1, 1, 2**63, 0),
    "a payload without header": channel.HEAD.pack(channel.MAGIC, 1, 1, 0, 1, 0, 64, 0) + b"\xc0",
    "no such segment": channel.HEAD.pack(channel.MAGIC, 1, 1, channel.SHARED, 1, 1, 64, 3) + b"\xc0\xc0",
    "a segment that did not come": channel.HEAD.pack(channel.MAGIC, 1, 1, 3, 1, 1, 64, 3) + b"\xc0\xc0",
    "fields that are none": channel.HEAD.pack(channel.MAGIC, 1, 1, 0, 1, 0, 0, 0) + b"\xc1",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_invalid_frame_is_refused_before_memory_is_allocated(head: bytes) -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(channel.BatchChannel(ours)) as receiver, theirs:
        theirs.sendall(head)
        with pytest.raises(frames.BadFrame):
            receiver.recv()


def test_forked_child_keeps_no_connection_open() -> None:
    with contextlib.closing(handshake.FeedListener(SECRET)) as listening:
        caller = handshake.connect(listening.address, SECRET)
        accepted = listening.accept()
        go, wait = os.pipe()
        child = os.fork()
        if child == 0:  # it lives on until told, and holds nothing of ours meanwhile
            os.close(wait)
            os.read(go, 1)
            os._exit(0)
        caller.close()
        with pytest.raises(EOFError):
            accepted.recv()
        os.close(wait), os.close(go)
        os.waitpid(child, 0)
        accepted.close()


def test_message_fields_convert_like_msgpack() -> None:
    class Ask(msgspec.Struct, array_like=True):
        step: int

    with connected_channels(shared=True) as (caller, accepted):
        caller.send(2, Ask(5))
        assert msgspec.convert(accepted.recv().fields, Ask) == Ask(5)


def test_closed_listener_leaves_no_thread() -> None:
    before = threading.active_count()
    listening = handshake.FeedListener(SECRET)
    listening.close()
    assert threading.active_count() == before


def test_caller_authenticated_after_the_listener_closed_is_disconnected(monkeypatch):
    answer, proved, closed = handshake._answer, threading.Event(), threading.Event()

    def late(*given):
        stays = answer(*given)
        proved.set()
        closed.wait(60)
        return stays

    monkeypatch.setattr(handshake, "_answer", late)
    listening = handshake.FeedListener(SECRET)
    with contextlib.closing(handshake.connect(listening.address, SECRET, shared=False)) as caller:
        assert proved.wait(60)
        listening.close()
        closed.set()
        with pytest.raises(EOFError):
            caller.recv()
