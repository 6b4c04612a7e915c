"""Starts and ends child processes that answer requests over pipes.

In: a Springtide module. Out: its process. `end` kills and reaps the process. Used by `brain.service.executor_pool` and
`brain.forecasting.forecast_client`.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

from springtide import config


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
        await exited  # SIGKILL acts soon; an event loop that closes earlier would leave a zombie
        raise
    finally:  # close the pipes now, not at garbage collection
        getattr(process, "_transport").close()  # noqa: B009 - asyncio has no public way to close the transport
