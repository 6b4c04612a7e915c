"""Batches from data workers over TLS: both ways at once, and refused without certificates."""

import contextlib
import datetime
import pathlib
import select
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from springtide import errors
from springtide.dataworker.transport import channel, codec, handshake
from springtide.platforms.agent import credentials
from springtide.rpc.transport import auth

SECRET = b"a job's secret"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("tls")
    for job in ("mine", "other"):
        credentials.lay_out(credentials.make(job, at=datetime.datetime.now(datetime.UTC)), root / job)
    return root


@contextlib.contextmanager
def tls_listener(root: pathlib.Path, role: str = "data-worker") -> Iterator[handshake.FeedListener]:
    with contextlib.closing(handshake.FeedListener(SECRET, certificates=str(root / "mine" / role))) as made:
        yield made


@contextlib.contextmanager
def connected_channels(
    root: pathlib.Path, *, shared: bool = False
) -> Iterator[tuple[channel.BatchChannel, channel.BatchChannel]]:
    with tls_listener(root) as made:
        caller = handshake.connect(made.address, SECRET, shared=shared, certificates=str(root / "mine/worker"))
        accepted = made.accept()
        with contextlib.closing(caller), contextlib.closing(accepted):
            yield caller, accepted


def test_tls_messages_and_batches_go_both_ways_at_once(root: pathlib.Path) -> None:
    with connected_channels(root) as (caller, accepted), ThreadPoolExecutor(2) as pool:
        assert not caller.local
        sent = {"x": torch.arange(300_000), "t": ["b" * 100] * 99, "none": torch.empty(0)}
        for _ in range(3):
            sending = [pool.submit(each.send, 7, {"step": 3}, codec.pack(sent)) for each in (caller, accepted)]
            for receiver in (caller, accepted):
                kind, fields, payload = receiver.recv({})
                assert (kind, fields) == (7, {"step": 3}) and payload is not None
                came = payload.tree()
                assert torch.equal(came["x"], sent["x"]) and came["t"] == sent["t"] and not len(came["none"])
            for each in sending:
                each.result()


@pytest.mark.parametrize("listens", [False, True])
def test_tls_interoperates_with_pythons_ssl(root: pathlib.Path, listens: bool) -> None:
    folder = root / "mine" / "data-worker"
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if listens else ssl.PROTOCOL_TLS_SERVER)
    theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_REQUIRED
    theirs.load_verify_locations(folder / "ca.crt")
    theirs.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    words = bytes(range(256)) * 4000
    ends = socket.socketpair()

    def other() -> bytes:
        with theirs.wrap_socket(ends[1], server_side=not listens) as there:  # as a server it sends tickets first
            there.sendall(words)
            got = b""
            while len(got) < len(words):
                got += there.recv(1 << 20)
            return got

    with ThreadPoolExecutor(1) as pool, contextlib.closing(ends[0]):
        theirs_got = pool.submit(other)
        ours = channel.SecureSocket(ends[0], str(folder), listens=listens)
        assert ours.recv(len(words)) == words
        ours.sendall(words)
        assert theirs_got.result() == words
        assert ours.recv(1) == b"", "closed"


def test_poll_reports_every_buffered_tls_message(root: pathlib.Path) -> None:
    with connected_channels(root) as (caller, accepted):
        for number in range(20):
            caller.send(number, ["a" * 40_000] if number % 2 else None)
        ready = select.poll()
        ready.register(accepted.fileno(), select.POLLIN)
        for number in range(20):
            assert ready.poll(10_000)
            assert accepted.recv().kind == number
        assert not ready.poll(0)


def test_batches_within_a_host_use_shared_memory_despite_tls(root: pathlib.Path) -> None:
    with connected_channels(root, shared=True) as (caller, accepted):
        assert caller.local and accepted.local


def test_strangers_without_tls_are_refused_and_block_no_trainer(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_listener(root) as made:
        host, port = made.address.split(":")
        with monkeypatch.context() as patched:
            patched.setattr(auth, "DEADLINE_S", 0.3)
            for first in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00", bytes(50_000)):
                with socket.create_connection((host, int(port)), timeout=20) as stranger, contextlib.suppress(OSError):
                    stranger.sendall(first)
                    while stranger.recv(4096):
                        pass
        with pytest.raises(auth.Rejected, match="certificate is not good"):
            handshake.connect(made.address, SECRET, certificates=str(root / "other/worker"))
        with monkeypatch.context() as patched, pytest.raises((auth.Rejected, OSError, EOFError)):
            patched.setattr(auth, "DEADLINE_S", 1.0)
            handshake.connect(made.address, SECRET)
        with pytest.raises(errors.BadInput, match="No such file"):
            handshake.connect(made.address, SECRET, certificates=str(root / "nowhere"))
        with contextlib.closing(handshake.connect(made.address, SECRET, certificates=str(root / "mine/worker"))):
            made.accept().close()


def test_caller_accepts_only_data_worker_certificates(root: pathlib.Path) -> None:
    with (
        tls_listener(root, "server") as made,
        pytest.raises(auth.Rejected, match="for a server; a data-worker was"),
    ):
        handshake.connect(made.address, SECRET, certificates=str(root / "mine/worker"))


def test_closed_tls_peer_wakes_a_waiting_receiver(root: pathlib.Path) -> None:
    with connected_channels(root) as (caller, accepted), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(accepted.recv)
        caller.close()
        with pytest.raises(EOFError):
            waiting.result()
