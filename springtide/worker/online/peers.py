"""Connections between the workers that shuffle a stream. Each worker opens a connection to every other worker, and
sends batches over it.

In: the shuffle unit names the batches to send, and the master sends addresses. Out: calls to the shuffle unit, in the
thread of this channel. Both sides of a connection prove that they know the job's secret. Frames have a size limit, and
the channel unpickles nothing. Undelivered messages are not sent again. If a peer is lost or silent, the shuffle unit
takes back the batches that it had sent to the peer.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from springtide import child_guard, errors
from springtide.data.stream import records
from springtide.domain.data.leases import LeaseHolder
from springtide.rpc.messages.coordination import Shufflers
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.transport import addresses, auth, frames, tls
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.master_link import MasterLink
from springtide.worker.online.shuffle_unit import RecordRun, ShuffleUnit

log = logging.getLogger(__name__)
TICK_S = 0.25
ALIVE_S = 1.0  # seconds between keep-alive messages on an idle connection
SILENT_S = 4.0  # if a peer is silent for this many seconds, this worker takes back the batches that it sent to the peer
DEAD_S = 30.0  # if a peer is silent for this many seconds, the connection is closed
AWAY_S = 1.0  # seconds; if a tick is this late, this process was stopped or got no CPU
RETRY_S, RETRY_MOST_S = 0.05, 2.0
GOODBYE_S = 2.0  # most seconds to wait until the last messages are sent
BUFFER = 2**20
PLANE = "shuffle-"
"""Prefix of the authentication proofs (`rpc.transport.auth`) of these connections. A proof for any other kind of
connection is invalid on these connections.
"""
# most bytes of a frame; enough for the largest batch (shuffle_unit.SENDABLE_BYTES) with its offsets and times
MAX_BYTES = 80 * 2**20
MAX_WORD_BYTES = 2**20  # most bytes of a message of any other kind


class PeerIdentity(NamedTuple):
    """Name and credentials of this worker."""

    name: str
    secret: bytes
    certificates: str


@dataclass(slots=True, eq=False)
class PeerLine:
    """One connection to a peer."""

    name: str
    writer: asyncio.StreamWriter
    heard_at: float
    said_at: float
    ready: bool = False
    silent: bool = False


class PeerMessage(msgspec.Struct, array_like=True, frozen=True):
    """Base class of all messages between peers."""


class Peers:
    """All peer connections of a worker (`shuffle_unit.Wires`). Thread-safe; only `close` blocks."""

    def __init__(self, unit: ShuffleUnit, secret: bytes, name: str, *, host: str, certificates: str = "") -> None:
        """Listen for peers. `certificates` is the folder of the job's TLS certificates; empty without TLS."""
        self._unit, self._own = unit, PeerIdentity(name, secret, certificates)
        self.sent_bytes = 0
        self._lines: dict[str, PeerLine] = {}
        """Connections to peers that this worker has called, and that accept its batches."""
        self._callers: dict[str, PeerLine] = {}
        """Connections of peers that have called this worker."""
        self._known: dict[str, str] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = auth.PendingHandshakes()
        self._descriptors: set[int] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="springtide-shuffle", daemon=True)
        self._thread.start()
        try:
            self.address = asyncio.run_coroutine_threadsafe(self._listen(host), self._loop).result()
        except OSError as error:
            self._stop()
            raise errors.PortTaken(f"cannot listen at {host}: {error.strerror or error}") from error
        child_guard.abandon_in_forks(self)

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Update the addresses of the workers, by name. A working connection stays open even if its peer is not
        listed."""
        self._soon(self._follow, {name: at for name, at in addresses.items() if name != self._own.name})

    # ---- messages of the unit ----

    def send(self, peer: str, run: RecordRun) -> None:
        self._soon(self._send, peer, run)

    def done(self, peer: str, claims: Mapping[BatchClaim, int]) -> None:
        """Tell a caller that these batches are trained. `claims` has the number of offsets without a record to train,
        for each batch."""
        self._soon(self._send_to, self._callers, peer, BatchTrained(tuple(claims), tuple(claims.values())))

    def back(self, peer: str, claims: Sequence[BatchClaim]) -> None:
        self._soon(self._send_to, self._callers, peer, BatchReturned(tuple(claims)))

    def announce(self, ready: bool) -> None:
        self._soon(self._broadcast, PeerReady(ready))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._goodbye(), self._loop).result()
        self._stop()

    # ---- internal, in the channel's thread ----

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # another thread has just closed the loop
                self._loop.call_soon_threadsafe(call, *arguments)

    async def _listen(self, host: str) -> str:
        self._server = await asyncio.start_server(self._serve, host, 0, backlog=1024, limit=BUFFER)
        self._descriptors.update(socket.fileno() for socket in self._server.sockets)
        self._start(self._tick())
        return addresses.join(host, self._server.sockets[0].getsockname()[1])

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _follow(self, known: dict[str, str]) -> None:
        self._known = known
        for name, address in known.items():
            if name not in self._dialing:
                self._dialing[name] = self._start(self._dial(name, address))

    async def _dial(self, name: str, address: str) -> None:
        """Call a peer again and again, as long as the master lists it at this address."""
        wait, last = RETRY_S, ""
        try:
            while self._known.get(name) == address:
                try:
                    await self._call(name, address)
                    wait = RETRY_S
                except (OSError, EOFError, TimeoutError, frames.BadFrame, auth.Rejected) as error:
                    if (why := str(error) or type(error).__name__) != last:
                        log.info("%s at %s: %s", name, address, why)
                    last = why
                await asyncio.sleep(wait)
                wait = min(RETRY_MOST_S, 2 * wait)
        finally:
            del self._dialing[name]
            if not self._closed:
                self._follow(self._known)  # the peer may have got a new address

    async def _call(self, name: str, address: str) -> None:
        """Serve one connection to a peer until the connection ends. Then raise `EOFError`."""
        host, port = addresses.parse(address)
        async with asyncio.timeout(auth.DEADLINE_S):
            connecting = tls.connecting(self._own.certificates)
            reader, writer = await asyncio.open_connection(host, port, limit=BUFFER, **connecting)
        with self._noted(writer):
            tls.check_stream(writer, self._own.certificates, "worker")
            await auth.answer(reader, writer, self._own.secret, plane=PLANE)
            line = PeerLine(name, writer, self._loop.time(), self._loop.time())
            self._write(line, frames.pack(PeerHello(self._own.name)))
            try:
                while True:
                    message = await frames.read(reader, from_called, limit=MAX_WORD_BYTES)
                    line.heard_at = self._loop.time()
                    if line.silent:
                        line.silent = False
                        self._unit.peer_ready(name, line.ready)
                    match message:
                        case PeerReady(ready):
                            self._lines[name], line.ready = line, ready
                            self._unit.peer_ready(name, ready)
                        case BatchTrained(claims, void):
                            self._unit.peer_done(name, dict(zip(claims, void, strict=False)))
                        case BatchReturned(claims):
                            self._unit.peer_gave_back(name, claims)
            finally:
                if self._lines.pop(name, None) is not None:
                    self._unit.peer_lost(name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        line = PeerLine("", writer, self._loop.time(), self._loop.time())
        try:
            with self._noted(writer):
                async with self._pending.handshake():
                    await tls.admit(writer, self._own.certificates)
                    await auth.challenge(reader, writer, self._own.secret, 0, plane=PLANE)
                async with asyncio.timeout(auth.DEADLINE_S):
                    hello = await frames.read(reader, from_caller, limit=frames.MAX_HANDSHAKE_BYTES)
                if not isinstance(hello, PeerHello):
                    raise frames.BadFrame(f"expected a name, got {type(hello).__name__}")
                line.name, self._callers[hello.name] = hello.name, line
                self._write(line, frames.pack(PeerReady(self._unit.ready)))
                while True:
                    message = await frames.read(reader, from_caller, limit=MAX_BYTES)
                    line.heard_at = self._loop.time()
                    if isinstance(message, BatchForwarded):
                        self._unit.peer_sent(line.name, run_of(message, line.name))
        except (OSError, EOFError, TimeoutError, frames.BadFrame, auth.Rejected) as error:
            quiet = isinstance(error, EOFError) or (isinstance(error, OSError) and line.name)
            log.log(
                logging.INFO if quiet else logging.WARNING,
                "%s: %s",
                line.name or "a stranger",
                str(error) or type(error).__name__,
            )
        except asyncio.CancelledError:
            pass  # this worker closes the connection
        finally:
            if self._callers.get(line.name) is line:
                del self._callers[line.name]

    @contextlib.contextmanager
    def _noted(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._descriptors.add(descriptor := sock.fileno())
        try:
            yield
        finally:
            self._descriptors.discard(descriptor)
            writer.transport.abort()

    def _send(self, peer: str, run: RecordRun) -> None:
        line = self._lines.get(peer)
        if line is not None:  # after the end of its connection, the shuffle unit treats the peer as lost
            batch = BatchForwarded(run.claim, run.partition, run.records.to_bytes())
            self._write(line, frames.pack(batch, limit=MAX_BYTES))

    def _send_to(self, lines: dict[str, PeerLine], peer: str, message: PeerMessage) -> None:
        if (line := lines.get(peer)) is not None:
            self._write(line, frames.pack(message, limit=MAX_WORD_BYTES))

    def _broadcast(self, message: PeerMessage) -> None:
        for peer in list(self._callers):
            self._send_to(self._callers, peer, message)

    def _write(self, line: PeerLine, frame: bytes) -> None:
        if not line.writer.is_closing():
            line.writer.write(frame)
            line.said_at = self._loop.time()
            self.sent_bytes += len(frame)

    async def _tick(self) -> None:
        last = self._loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = self._loop.time()
            last, away_s = now, now - last - TICK_S
            away_s = away_s if away_s > AWAY_S else 0.0
            for line in [*self._lines.values(), *self._callers.values()]:
                line.heard_at += away_s
                if now - line.said_at >= ALIVE_S:
                    self._write(line, frames.pack(PeerAlive()))
                if now - line.heard_at > DEAD_S:
                    line.writer.transport.abort()
            for line in list(self._lines.values()):
                if now - line.heard_at > SILENT_S and not line.silent:
                    line.silent = True
                    log.warning("%s is silent, so this worker takes back the batches that it sent there", line.name)
                    self._unit.peer_silent(line.name)
            self._unit.tick(away_s)

    async def _goodbye(self) -> None:
        self._server.close()
        until = self._loop.time() + GOODBYE_S
        writers = [line.writer for line in (*self._lines.values(), *self._callers.values())]
        while self._loop.time() < until and any(writer.transport.get_write_buffer_size() for writer in writers):
            await asyncio.sleep(0.01)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def abandon(self) -> None:
        """Replace inherited sockets in a forked child, so that connections end when the parent ends."""
        if self._closed:  # the kernel may have reused the socket's descriptor for a different file
            return
        self._closed = True
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in self._descriptors:
            os.dup2(nothing, descriptor)
        os.close(nothing)


class PeerHello(PeerMessage, frozen=True, tag=0):
    """Message with the name of the calling worker, such as `worker-2.0`."""

    name: str


class BatchForwarded(PeerMessage, frozen=True, tag=1):
    """Message with a batch of the calling worker, which the called worker should train."""

    claim: BatchClaim
    partition: int
    records: bytes


class PeerAlive(PeerMessage, frozen=True, tag=2):
    """Keep-alive message."""


class PeerReady(PeerMessage, frozen=True, tag=3):
    """Message that says whether the called worker accepts batches. The called worker sends the message first, and after
    every change."""

    ready: bool


class BatchTrained(PeerMessage, frozen=True, tag=4):
    """Message that names batches of the calling worker that the called worker has trained."""

    claims: tuple[BatchClaim, ...]
    void: tuple[int, ...]
    """Number of offsets without a record to train, for each batch."""


class BatchReturned(PeerMessage, frozen=True, tag=5):
    """Message that names batches of the calling worker that the called worker returns untrained."""

    claims: tuple[BatchClaim, ...]


from_caller: "msgspec.msgpack.Decoder[PeerHello | BatchForwarded | PeerAlive]" = msgspec.msgpack.Decoder(
    PeerHello | BatchForwarded | PeerAlive
)
from_called: "msgspec.msgpack.Decoder[PeerAlive | PeerReady | BatchTrained | BatchReturned]" = msgspec.msgpack.Decoder(
    PeerAlive | PeerReady | BatchTrained | BatchReturned
)


def run_of(batch: BatchForwarded, owner: str) -> RecordRun:
    claim = batch.claim
    if not (0 <= claim.first <= claim.begin < claim.end and claim.shard >= 0 and batch.partition >= 0):
        raise frames.BadFrame(f"{owner} sent a batch with the claim {claim} of partition {batch.partition}")
    try:
        came = records.from_bytes(batch.records)
    except errors.SpringtideError as error:
        raise frames.BadFrame(f"{owner} sent a batch that cannot be read: {error}") from error
    if len(came) and not (claim.begin <= int(came.offsets[0]) and int(came.offsets[-1]) < claim.end):
        raise frames.BadFrame(f"{owner} sent records outside of their claim {claim}")
    return RecordRun(claim, batch.partition, came, owner)


def open_unit(
    to_master: MasterLink, welcome: WorkerWelcome, *, strategy: str = "advanced", queue: tuple[int, int] | None = None
) -> ShuffleUnit:
    """Create the shuffle unit, which works until `ShuffleUnit.close`. With the strategy "none", or without a cluster,
    the unit is a plain queue.
    """
    chosen = strategy if any(welcome.servers) else "none"
    unit = ShuffleUnit(
        to_master.leases.tracker, strategy=chosen, queue=queue, seed=welcome.spec.seed * 65537 + welcome.rank
    )
    if chosen == "none":
        return unit
    # import here, because this module imports torch, which a unit without peers does not need
    from springtide.worker import connect

    name = str(LeaseHolder(welcome.rank, welcome.incarnation))
    try:
        host = connect.own_host(welcome)
        peers = Peers(unit, welcome.secret, name, host=host, certificates=welcome.certificates)
    except errors.PortTaken as error:
        log.warning("this worker exchanges no batches with other workers: %s", error)
        return unit
    unit.connect(peers)

    def on_shufflers(news: Shufflers) -> None:
        peers.follow({member.name: member.address for member in news.members})

    to_master.news.shuffle_address = peers.address
    to_master.news.shufflers.follow(on_shufflers)
    return unit
