"""Serves a brain until SIGINT or SIGTERM: takes the folder lock, the secret and the port, then runs the service.

Out: `brain.json` and `secret` in the folder, with which masters and commands find the brain; `/live` and `/ready` for a
process supervisor. A standby brain is live but not ready. All important state is in the database before the process
exits.
"""

import asyncio
import contextlib
import datetime
import fcntl
import functools
import logging
import os
import pathlib
import resource
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import cast

from springtide import config, errors
from springtide.brain.decide.cluster_state import BrainRules
from springtide.brain.service import messages
from springtide.brain.service.executor_pool import ExecutorPool
from springtide.brain.service.messages import ASKING_ROLE, BRAIN_ROLE
from springtide.brain.service.service import GATHER_S, KEEP_S, BrainService
from springtide.brain.store import store
from springtide.platforms.agent import credentials
from springtide.rpc.transport import addresses, tls
from springtide.rpc.transport.listener import Handle, RpcListener
from springtide.telemetry import prometheus

log = logging.getLogger(__name__)

# seconds between two attempts of a standby to become the serving brain; asking for an advisory lock costs the database
# almost nothing
TURN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `springtide brain serve`."""

    rules: BrainRules
    folder: pathlib.Path
    """Folder for the brain's address, its secret and, by default, its database."""
    listen: str = "127.0.0.1:7790"
    """HOST:PORT to listen on; port 0 takes any free port."""
    database: str = ""
    """Database URL. If empty, the setting `brain_database` applies, and without that setting SQLite in the folder."""
    secret_file: str = ""
    """File with the secret. If empty, the brain uses the secret in its folder, and creates a missing secret."""
    executors: int = 1
    standby: bool = False
    """Wait while another brain serves from the database; then take over."""
    tls: str = ""
    """Folder with certificates, created if missing; empty for no TLS."""
    health: str = ""
    """HOST:PORT of /live and /ready, for the process supervisor; empty for no health server."""
    gather_s: float = GATHER_S
    keep_s: float = KEEP_S


class HealthServer(prometheus.MetricsServer):
    """Health server of one brain."""

    def __init__(self) -> None:
        super().__init__(lambda: "")
        self.serving = False

    def _reply(self, line: str) -> bytes:
        path = line.partition(" ")[2].partition(" ")[0]
        if path not in ("/live", "/ready"):
            return prometheus.response("404 Not Found", "/live and /ready\n")
        if path == "/ready" and not self.serving:
            return prometheus.response("503 Service Unavailable", "standing by\n")
        return prometheus.response("200 OK", "serving\n" if self.serving else "standing by\n")


@contextlib.asynccontextmanager
async def health_server(listen: str) -> AsyncIterator[HealthServer]:
    health = HealthServer()
    if listen:
        host, port = addresses.parse(listen)
        await health.start(port, host, option="--health")
    try:
        yield health
    finally:
        await health.close()


def where_file(folder: pathlib.Path) -> pathlib.Path:
    return folder / "brain.json"


def secret_file(folder: pathlib.Path) -> pathlib.Path:
    return folder / "secret"


def make_certificates() -> dict[str, bytes]:
    now = datetime.datetime.now(datetime.UTC)
    return credentials.make(BRAIN_ROLE, at=now, roles=(BRAIN_ROLE, ASKING_ROLE))


def certificate_folders(root: pathlib.Path) -> tuple[str, str]:
    """Return DIR/brain and DIR/master, the certificates of the brain and of its clients, created if missing."""
    own, asking = (root / role for role in (BRAIN_ROLE, ASKING_ROLE))
    try:
        if not own.exists():
            part = root.with_name(f"{root.name}.{os.getpid()}.part")
            try:
                credentials.lay_out(make_certificates(), part)
                # create both folders with one rename, because a brain that is killed between two renames would lock its
                # masters out
                part.rename(root)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise errors.BadInput(f"cannot make certificates in {root}: {error.strerror or error}") from error
    found = tls.identity(str(own))
    if found.role != BRAIN_ROLE:
        raise errors.BadInput(f"{own / tls.CERTIFICATE} is for a {found.role}; expected one for a {BRAIN_ROLE}")
    return str(own), str(asking)


def own_secret(options: ServeOptions) -> bytes:
    path = pathlib.Path(options.secret_file) if options.secret_file else secret_file(options.folder)
    if not options.secret_file and not path.exists():
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        except OSError as error:
            raise errors.BadInput(f"cannot write the brain's secret to {path}: {error.strerror or error}") from error
    found = config.read_secret(str(path), "the brain's secret")
    if len(found) < 16:
        raise errors.BadInput(f"the brain's secret in {path} has {len(found)} bytes; expected 16 or more")
    return found


async def serve(options: ServeOptions, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; call `ready` with the address."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # raise the limit on open files: each master takes one connection
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    over = asyncio.Event()
    for stop in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(stop, over.set)
    try:
        async with health_server(options.health) as shown:
            while not over.is_set():
                await _serve_once(options, over, shown, ready)
    finally:
        for stop in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(stop)


async def _serve_once(
    options: ServeOptions, over: asyncio.Event, shown: HealthServer, ready: Callable[[str], None]
) -> None:
    async with serving(options, over) as service:
        if service is None:
            return
        ready(service.address)
        shown.serving = True
        try:
            await _first(over, service.deposed)
        finally:
            shown.serving = False
        if over.is_set():
            log.info("stopping; live jobs and promises are in the database")
        elif not options.standby:
            raise errors.JobFailed("another brain serves from the database now, so this one stops")


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(options: ServeOptions, over: asyncio.Event | None = None) -> AsyncIterator[BrainService | None]:
    """Yield a listening service, or None if `over` is set before this brain gets the database."""
    at = addresses.parse(options.listen)
    with alone(options.folder):
        secret, own, asking = own_secret(options), "", ""
        if options.tls:
            own, asking = certificate_folders(pathlib.Path(options.tls).absolute())
        database = await _its_turn(options, over or asyncio.Event())
        if database is None:
            yield None
            return
        pool = ExecutorPool()
        service = BrainService(options.rules, database, pool, strict=options.standby)
        handle = cast("Handle", service.handle)
        listener = RpcListener(secret, handle, lambda _: None, calls=messages.CALLS, who="brain", certificates=own)
        loops: list[asyncio.Task[None]] = []
        try:
            await pool.resize(options.executors)
            await service.restore()
            service.address = await listener.start(*at)
            works = [service.rounds(options.gather_s), service.tidy(options.keep_s)]
            if options.standby:
                works.append(service.watch())
            loops += map(asyncio.create_task, works)
            location = addresses.MasterLocation(pid=os.getpid(), address=service.address, tls=asking)
            addresses.write_master(where_file(options.folder), location)
            yield service
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await listener.close()
            await service.write_down()
            await pool.close()
            await asyncio.to_thread(database.close)


async def _its_turn(options: ServeOptions, over: asyncio.Event) -> store.BrainStore | None:
    """Open and claim the database. A standby waits without limit, also for a database that is down."""
    waited, url = "", options.database or config.load().brain_database or str(options.folder / "brain.db")
    while True:
        database: store.BrainStore | None = None
        try:
            database = await asyncio.to_thread(store.open_store, url)
            await asyncio.to_thread(functools.partial(database.claim, strict=options.standby))
            return database
        except errors.SpringtideError as error:
            if database is not None:
                await asyncio.to_thread(database.close)
            turn_comes = isinstance(error, errors.TemporaryError) or database is not None
            if not (options.standby and turn_comes):
                raise
            if str(error) != waited:
                log.info("standing by: %s", error)
            waited = str(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), TURN_S)
        if over.is_set():
            return None


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Lock the folder, because two brains with the same folder would both assign the same cores. The lock ends with the
    process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115 - the lock is held until the process exits
    except OSError as error:
        raise errors.BadInput(f"the brain's folder {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            where = addresses.read_master(where_file(folder))
            other = f" (pid {where.pid}, at {where.address})" if where else ""
            raise errors.BadInput(
                f"another brain{other} serves from {folder}; stop that one, or give --folder"
            ) from None
        yield
