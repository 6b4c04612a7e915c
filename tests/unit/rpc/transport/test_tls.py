"""The control plane over TLS: only members connect, and traffic is encrypted."""

import asyncio
import datetime
import itertools
import pathlib
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from springtide import errors
from springtide.platforms.agent import credentials
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueFound
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import addresses, auth, connection, frames, listener, tls

SECRET = b"s" * 32
NOW = datetime.datetime.now(datetime.UTC)
WORD = "a-word-that-nobody-may-read"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Certificates of this job, of another job, and expired ones of this job."""
    root = tmp_path_factory.mktemp("tls")
    credentials.lay_out(credentials.make("mine", at=NOW), root / "mine")
    credentials.lay_out(credentials.make("other", at=NOW), root / "other")
    expired = credentials.make("mine", at=NOW - datetime.timedelta(days=9), life=datetime.timedelta(days=1))
    credentials.lay_out(expired, root / "expired")
    return root


class Proxy:
    """Passes bytes on and keeps them."""

    def __init__(self, to: str) -> None:
        self.to, self.seen = to, bytearray()
        self.over = asyncio.Event()

    async def start(self) -> str:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection(*addresses.parse(self.to))
        await asyncio.gather(self.pump(reader, far[1]), self.pump(far[0], writer))
        await asyncio.gather(connection.hang_up(far[1]), connection.hang_up(writer))
        self.server.close()
        self.over.set()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.seen += data
            writer.write(data)
        writer.close()


async def handle(_: listener.Peer, request: Request) -> Reply:
    assert isinstance(request, ShareRequest)
    return ValueFound(request.value)


def with_listener(work: Callable[[str], Awaitable[None]], certificates: str) -> None:
    """Run `work` against a listener with these certificates."""

    async def run() -> None:
        served = listener.RpcListener(SECRET, handle, lambda _: None, certificates=certificates)
        address = await served.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(60):
                await work(address)
        finally:
            await served.close()

    asyncio.run(run())


async def ask(address: str, certificates: str, role: str = "master") -> Reply:
    link = await connection.connect(address, SECRET, within_s=20, certificates=certificates, role=role)
    try:
        return await link.ask(ShareRequest("key", WORD.encode() * 1000))
    finally:
        await link.close()


@pytest.mark.parametrize("secure", [False, True])
def test_proxy_reads_traffic_only_without_tls(root: pathlib.Path, secure: bool) -> None:
    async def work(address: str) -> None:
        proxy = Proxy(address)
        reply = await ask(await proxy.start(), str(root / "mine/worker") if secure else "")
        await proxy.over.wait()
        assert reply == ValueFound(WORD.encode() * 1000)
        assert (WORD.encode() in proxy.seen) is not secure
        assert len(proxy.seen) > 2 * len(WORD) * 1000
        assert not secure or b"mine" not in proxy.seen

    with_listener(work, str(root / "mine/master") if secure else "")


@pytest.mark.parametrize(
    ("certificates", "why"),
    [("other/worker", "certificate is invalid"), ("expired/worker", "cannot be used"), ("", "needs SPRINGTIDE_TLS")],
)
def test_caller_with_invalid_certificates_is_told_why(
    root: pathlib.Path, certificates: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not certificates:
        monkeypatch.setattr(auth, "DEADLINE_S", 0.2)  # both wait for the other's first word

    async def work(address: str) -> None:
        with pytest.raises(errors.SpringtideError, match=why):
            await connection.connect(
                address,
                SECRET,
                within_s=20 if certificates else 1,
                certificates=str(root / certificates) if certificates else "",
            )

    with_listener(work, str(root / "mine/master"))


def test_caller_refuses_a_listener_of_another_role(root: pathlib.Path) -> None:
    async def work(address: str) -> None:
        with pytest.raises(errors.MasterUnreachable, match="for a worker, but the caller expected a master"):
            await ask(address, str(root / "mine/worker"))
        assert isinstance(await ask(address, str(root / "mine/server"), role="worker"), ValueFound)

    with_listener(work, str(root / "mine/worker"))


def test_caller_of_another_authority_fails_the_handshake(
    root: pathlib.Path,
) -> None:
    async def work(address: str) -> None:
        host, port = addresses.parse(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # one that does not care whom it calls
        for shown in ("", str(root / "other/worker")):
            if shown:
                context.load_cert_chain(f"{shown}/tls.crt", f"{shown}/tls.key")
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
                try:
                    await reader.readexactly(1)
                finally:
                    writer.transport.abort()
        assert isinstance(await ask(address, str(root / "mine/worker")), ValueFound)

    with_listener(work, str(root / "mine/master"))


def test_plaintext_listener_is_recognized(root: pathlib.Path) -> None:
    async def work(address: str) -> None:
        with pytest.raises(errors.MasterUnreachable, match="does not speak TLS"):
            await ask(address, str(root / "mine/worker"))

    with_listener(work, "")


def test_silent_listener_is_reported_without_advice_on_tls(root: pathlib.Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(errors.MasterUnreachable, match=r"after 0\.1 s \(no answer\)"):
                await connection.connect(address, SECRET, within_s=0.1, certificates=str(root / "mine/worker"))

    asyncio.run(run())


def test_garbage_silence_and_partial_handshakes_are_disconnected(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "DEADLINE_S", 0.2)
    hello = client_hello(str(root / "mine/worker"))

    async def work(address: str) -> None:
        host, port = addresses.parse(address)
        plain = frames.pack(messages.HandshakeAnswer(messages.VERSION, b"n" * 32, b"p" * 32))
        for sent in (b"", plain, b"GET / HTTP/1.1\r\n\r\n", hello[:40], hello, hello[:-1] + b"x", bytes(100_000)):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            while True:  # it ends by itself, whatever is said on the way
                try:
                    if not await reader.read(65536):
                        break
                except ConnectionError:
                    break
            writer.transport.abort()
        assert isinstance(await ask(address, str(root / "mine/worker")), ValueFound)

    with_listener(work, str(root / "mine/master"))


def client_hello(folder: str) -> bytes:
    """The first bytes of a handshake."""
    came, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = tls.connecting(folder)["ssl"].wrap_bio(came, going)
    with pytest.raises(ssl.SSLWantReadError):
        calling.do_handshake()
    return going.read()


def test_older_tls_versions_are_refused(root: pathlib.Path) -> None:
    async def work(address: str) -> None:
        host, port = addresses.parse(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(root / "mine/worker/tls.crt", root / "mine/worker/tls.key")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, port, ssl=context, server_hostname="")

    with_listener(work, str(root / "mine/master"))


def test_renewed_certificate_is_used_for_the_next_caller(tmp_path: pathlib.Path) -> None:
    credentials.lay_out(credentials.make("mine", at=NOW), tmp_path)

    async def work(address: str) -> None:
        first = await shown_certificate(address, str(tmp_path / "worker"))
        assert await shown_certificate(address, str(tmp_path / "worker")) == first
        credentials.lay_out(credentials.make("mine", at=NOW), tmp_path)  # another authority even: both take it up
        assert await shown_certificate(address, str(tmp_path / "worker")) != first

    with_listener(work, str(tmp_path / "master"))


async def shown_certificate(address: str, folder: str) -> bytes:
    reader, writer = await asyncio.open_connection(*addresses.parse(address), **tls.connecting(folder))
    await reader.readexactly(1)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    assert isinstance(writer.get_extra_info("socket").family, socket.AddressFamily)
    assert certificate
    return bytes(certificate)


def test_megabytes_go_both_ways_over_tls(root: pathlib.Path) -> None:
    async def work(address: str) -> None:
        link = await connection.connect(address, SECRET, within_s=20, certificates=str(root / "mine/worker"))
        sent = [bytes([number]) * (3 << 20) for number in range(4)]
        replies = await asyncio.gather(*(link.ask(ShareRequest("key", each)) for each in sent))
        await link.close()
        assert replies == [ValueFound(each) for each in sent]

    with_listener(work, str(root / "mine/master"))


def test_suspended_caller_does_not_block_a_closing_listener(root: pathlib.Path) -> None:
    async def work() -> None:
        served = listener.RpcListener(SECRET, handle, lambda _: None, certificates=str(root / "mine/master"))
        address = await served.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(
            *addresses.parse(address), **tls.connecting(str(root / "mine/worker"))
        )
        await reader.readexactly(1)  # it has been let in
        writer.transport.pause_reading()  # and hears nothing any more
        async with asyncio.timeout(15):  # asyncio by itself would wait for 30
            await served.close()
        writer.transport.abort()

    asyncio.run(work())


def test_tls_connection_may_be_closed_twice(root: pathlib.Path) -> None:
    async def work(address: str) -> None:
        own = await connection.connect(address, SECRET, within_s=10, certificates=str(root / "mine" / "worker"))
        await own.close()
        await own.close()

    with_listener(work, str(root / "mine" / "master"))


def test_temporarily_invalid_certificate_files_keep_the_old_ones_in_use(tmp_path: pathlib.Path) -> None:
    credentials.lay_out(credentials.make("mine", at=NOW), tmp_path)
    folder = tmp_path / "worker"
    known = tls.connecting(str(folder))["ssl"]
    key = pathlib.Path(folder) / tls.KEY
    kept = key.read_bytes()
    key.write_bytes(b"half of a k")
    assert tls.connecting(str(folder))["ssl"] is known
    key.write_bytes(kept)
    assert tls.identity(str(folder)).role == "worker"


def test_caller_that_gives_up_as_the_handshake_completes_can_call_again(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = sslproto.SSLProtocol._on_handshake_complete  # type: ignore[attr-defined]

    async def work(address: str) -> None:
        calling = asyncio.create_task(
            connection.connect(address, SECRET, within_s=60, certificates=str(root / "mine/worker"))
        )

        def complete_and_cancel(self: Any, failure: Any) -> None:
            complete(self, failure)
            if not self._server_side:
                calling.cancel()

        monkeypatch.setattr(sslproto.SSLProtocol, "_on_handshake_complete", complete_and_cancel)
        await asyncio.wait({calling})
        assert calling.cancelled()
        monkeypatch.setattr(sslproto.SSLProtocol, "_on_handshake_complete", complete)
        assert await ask(address, str(root / "mine/worker"))

    with_listener(work, str(root / "mine/master"))


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("WRONG_VERSION_NUMBER", "the peer does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides?"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the peer sent no certificate: is SPRINGTIDE_TLS set on both sides?"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the peer sent no certificate: is SPRINGTIDE_TLS set on both sides?"),
        (
            "TLSV1_ALERT_UNKNOWN_CA",
            "the peer rejected this process's certificate, or closed the connection (unknown ca)",
        ),
        ("BAD_RECORD_TYPE", "TLS failed: bad record type"),
        (None, "TLS failed: the text"),
    ],
)
def test_tls_errors_are_explained(reason: str | None, why: str) -> None:
    error = ssl.SSLError(1, "the text")
    error.reason = reason  # type: ignore[assignment]
    refusal = tls.as_refusal(error)
    assert isinstance(refusal, auth.Rejected) and str(refusal) == why


@pytest.mark.parametrize("error", [ssl.SSLEOFError(), ssl.SSLZeroReturnError(), ssl.SSLSyscallError(), OSError()])
def test_connection_that_breaks_during_the_handshake_is_tried_again(error: OSError) -> None:
    assert tls.as_refusal(error) is error


@pytest.mark.parametrize(
    "names",
    [
        None,
        {},
        {"subjectAltName": (("DNS", "springtide:mine/worker"),)},
        {"subjectAltName": (("URI", "https://mine/worker"),)},
        {"subjectAltName": (("URI", "springtide:mine"),)},
        {"subjectAltName": (("URI", "springtide:/worker"),)},
        {"subjectAltName": (("URI", "springtide:mine/"),)},
    ],
)
def test_certificate_without_a_job_and_a_role_names_no_process(names: Any, root: pathlib.Path) -> None:
    assert tls.identity_in(names) is None
    with pytest.raises(auth.Rejected, match="its certificate names no process of a job"):
        tls.check(names, str(root / "mine/worker"))


def test_certificate_names_the_job_and_role_in_any_letters() -> None:
    own = tls.Identity("a/b %", "worker")
    assert tls.identity_in({"subjectAltName": (("DNS", "host"), ("URI", own.uri))}) == own


def test_certificate_of_another_job_or_role_is_refused(root: pathlib.Path) -> None:
    folder, other = str(root / "mine/worker"), {"subjectAltName": (("URI", "springtide:other/server"),)}
    own = {"subjectAltName": (("URI", "springtide:mine/server"),)}
    with pytest.raises(auth.Rejected, match="is for the job 'other', but this job is 'mine'"):
        tls.check(other, folder)
    with pytest.raises(auth.Rejected, match="is for a server, but the caller expected a master"):
        tls.check(own, folder, "master")
    assert tls.check(own, folder, "server") == tls.check(own, folder) == tls.Identity("mine", "server")


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_ready", {})
    make, failures = tls._context, [OSError("gone"), ssl.SSLError("half")]

    def context(folder: pathlib.Path, protocol: int) -> ssl.SSLContext:
        if failures:
            raise failures.pop()
        return make(folder, protocol)

    monkeypatch.setattr(tls, "_context", context)
    assert tls.identity(str(root / "mine/worker")).role == "worker" and not failures


def test_files_that_keep_changing_are_used_as_last_read(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_ready", {})
    stamps = itertools.count()
    monkeypatch.setattr(tls, "_stamp", lambda path: (next(stamps), 0, 0))
    assert tls.identity(str(root / "mine/worker")) == tls.Identity("mine", "worker")


def test_unusable_certificates_are_named(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(errors.BadInput, match=r"the certificates in .* cannot be used: .*No such file"):
        tls.identity(str(tmp_path))
    for name, source in ((tls.AUTHORITY, "mine"), (tls.CERTIFICATE, "mine"), (tls.KEY, "other")):
        (tmp_path / name).write_bytes((root / source / "worker" / name).read_bytes())
    with pytest.raises(errors.BadInput, match=r"cannot be used: key values mismatch; expected ca\.crt"):
        tls.identity(str(tmp_path))
    monkeypatch.setattr(tls, "_ready", {})
    folder = str(root / "mine/worker")
    assert tls.identity(folder).role == "worker"
    monkeypatch.setattr(tls, "_stamp", lambda path: pathlib.Path(path / "gone").stat())
    assert tls.identity(folder).role == "worker"
    assert "cannot be used" in caplog.text and "the previous certificates stay in use" in caplog.text


def test_certificate_of_this_process_must_name_it(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_ready", {})
    monkeypatch.setattr(tls, "_meet_oneself", lambda caller, listener: None)
    with pytest.raises(errors.BadInput, match=r"tls\.crt has no name such as springtide:JOB/worker"):
        tls.identity(str(root / "mine/worker"))


def test_process_without_certificates_uses_no_tls() -> None:
    assert tls.connecting("") == {}


def test_listener_learns_the_role_of_a_callers_certificate(root: pathlib.Path) -> None:
    certified = []

    async def note(peer: listener.Peer, request: Request) -> Reply:
        certified.append(peer.certified)
        return await handle(peer, request)

    async def run(server: str, caller: str) -> None:
        served = listener.RpcListener(SECRET, note, lambda _: None, certificates=server)
        await ask(await served.start("127.0.0.1", 0), caller)
        await served.close()

    asyncio.run(run("", ""))
    asyncio.run(run(str(root / "mine/master"), str(root / "mine/server")))
    assert certified == ["", "server"]


def test_caller_that_fails_the_handshake_is_disconnected(root: pathlib.Path) -> None:
    aborted = []

    class Stranger:
        @property
        def transport(self) -> Any:
            return self

        def abort(self) -> None:
            aborted.append(True)

        async def start_tls(self, context: ssl.SSLContext, **options: float) -> None:
            error = ssl.SSLError(1, "the text")
            error.reason = "NO_PROTOCOLS_AVAILABLE"
            raise error

    with pytest.raises(auth.Rejected, match=r"does not speak TLS 1\.3"):
        asyncio.run(tls.admit(Stranger(), str(root / "mine/master")))  # type: ignore[arg-type]
    assert aborted == [True]
