"""Child processes that answer requests over pipes. The module has the parent's side and the child's side.

The executors of a brain use this module. Output that a policy prints goes to standard error.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import BinaryIO, TypeVar

import msgspec

from springtide import config, errors
from springtide.rpc.transport import frames

T = TypeVar("T")


async def start(module: str) -> Process:
    """Start a single-threaded child process that ignores Ctrl-C; the parent handles the signal."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=PIPE,
        stdout=PIPE,
        env=config.child_environment({}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        start_new_session=True,
    )


async def end(process: Process) -> None:
    """Kill the process if it is alive and reap it, even if the caller is cancelled."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    exited = asyncio.ensure_future(process.wait())
    try:
        await asyncio.shield(exited)
    except asyncio.CancelledError:
        # wait for the exit, which comes soon after SIGKILL; if the event loop closed earlier, a zombie would remain
        await exited
        raise
    finally:  # close the pipes now, because garbage collection may close them much later
        getattr(process, "_transport").close()  # noqa: B009 - asyncio has no public way to close the transport


def open_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes for requests and replies, inside the child. From then on, prints go to standard error."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return source, sink


def read_request(source: BinaryIO, decoder: "msgspec.msgpack.Decoder[T]", *, limit: int) -> T | None:
    """Return the next request; None at the end of the input."""
    head = source.read(frames.LENGTH.size)
    if len(head) < frames.LENGTH.size:
        return None
    (size,) = frames.LENGTH.unpack(head)
    if size > limit:
        raise errors.BadInput(f"a request of {size} bytes was announced; the limit is {limit}")
    return frames.unpack(source.read(size), decoder)


def write_reply(sink: BinaryIO, reply: msgspec.Struct, *, limit: int) -> None:
    sink.write(frames.pack(reply, limit=limit))
    sink.flush()
