"""A served brain from start to end: its folder, its secret, its port, its loops; Ctrl-C ends it in order.

In: `Options` of the command line. Out: `brain.json` and `secret` in its folder, by which masters and commands find it,
and a service until a signal comes. Everything that matters is in the database by then.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import pathlib
import resource
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import cast

from springtide import config, errors
from springtide.brain import store
from springtide.brain.council import Rules
from springtide.brain.pool import Pool
from springtide.brain.service import GATHER_S, KEEP_S, Service
from springtide.rpc import addresses, counsel, whereabouts
from springtide.rpc.listener import Handle, Listener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a brain is served."""

    rules: Rules
    folder: pathlib.Path
    """For its whereabouts, its secret and, unless told otherwise, its database."""
    listen: str = "127.0.0.1:7790"
    """HOST:PORT; port 0 is any free one."""
    database: str = ""
    """A URL; empty: SQLite in the folder."""
    secret_file: str = ""
    """Empty: one in the folder, drawn if there is none."""
    executors: int = 1
    gather_s: float = GATHER_S
    keep_s: float = KEEP_S


def where_file(folder: pathlib.Path) -> pathlib.Path:
    """Says where the brain of a folder is."""
    return folder / "brain.json"


def secret_file(folder: pathlib.Path) -> pathlib.Path:
    """The secret of the brain of a folder."""
    return folder / "secret"


def own_secret(options: Options) -> bytes:
    """The brain's secret: as given, as it was, or a new one."""
    path = pathlib.Path(options.secret_file) if options.secret_file else secret_file(options.folder)
    if not options.secret_file and not path.exists():
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        except OSError as error:
            raise errors.BadInput(f"cannot write the brain's secret to {path}: {error.strerror or error}") from error
    found = config.read_secret(str(path), "the brain's secret")
    if len(found) < 16:
        raise errors.BadInput(f"the brain's secret in {path} has {len(found)} bytes; wanted 16 or more")
    return found


async def serve(options: Options, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))  # a connection a master
    over = asyncio.Event()
    for stop in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(stop, over.set)
    try:
        async with serving(options) as service:
            ready(service.address)
            await over.wait()
            log.info("going; live jobs and promises are in the database")
    finally:
        for stop in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(stop)


@contextlib.asynccontextmanager
async def serving(options: Options) -> AsyncIterator[Service]:
    """A service that listens."""
    host, port = addresses.parse(options.listen)
    with alone(options.folder):
        async with _serving(options, host, port) as service:
            yield service


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Two brains on one folder would each give the same cores away. The lock goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115 - it is held till the end
    except OSError as error:
        raise errors.BadInput(f"the brain's folder {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            where = whereabouts.read(where_file(folder))
            other = f" (pid {where.pid}, at {where.address})" if where else ""
            raise errors.BadInput(
                f"another brain{other} serves from {folder}; stop that one, or give --folder"
            ) from None
        yield


@contextlib.asynccontextmanager
async def _serving(options: Options, host: str, port: int) -> AsyncIterator[Service]:
    secret = own_secret(options)
    database = await asyncio.to_thread(store.open_store, options.database or str(options.folder / "brain.db"))
    pool = Pool()
    service = Service(options.rules, database, pool, gather_s=options.gather_s)
    listener = Listener(secret, cast("Handle", service.handle), lambda _: None, calls=counsel.CALLS, who="brain")
    loops: list[asyncio.Task[None]] = []
    try:
        await asyncio.to_thread(database.claim)
        await pool.resize(options.executors)
        await service.restore()
        service.address = await listener.start(host, port)
        loops += [asyncio.create_task(service.rounds()), asyncio.create_task(service.tidy(options.keep_s))]
        said = whereabouts.Whereabouts(pid=os.getpid(), address=service.address)
        whereabouts.write(where_file(options.folder), said)
        yield service
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await listener.close()
        await service.write_down()
        await pool.close()
        await asyncio.to_thread(database.close)
