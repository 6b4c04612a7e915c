"""A process of a module of ours that is asked and answers by its pipes.

In: the module. Out: the process; `end` leaves nothing of it. For `brain.service.executor_pool` and
`brain.forecasting.forecast_client`.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

from springtide import config


async def start(module: str) -> Process:
    """One thread each is enough; Ctrl-C is the business of whoever asks."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=PIPE,
        stdout=PIPE,
        env=config.child_environment({}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        start_new_session=True,
    )


async def end(process: Process) -> None:
    """Kill the process, if it lives, and reap it, also when the caller is cancelled meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    exited = asyncio.ensure_future(process.wait())
    try:
        await asyncio.shield(exited)
    except asyncio.CancelledError:
        await exited  # soon: SIGKILL is sent. An event loop that closes before would leave a zombie
        raise
    finally:  # pipes are closed now, not when they are collected
        getattr(process, "_transport").close()  # noqa: B009 - there is no public way
