"""Sends requests to the master of a running job, from a process that has no connection to it."""

import asyncio
import pathlib
import time
from collections.abc import Callable

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import addresses, connection
from springtide.telemetry.logs import RunFiles

ANSWER_S = 15.0  # seconds to wait for a reply; replacing a master takes less time
AGAIN_S = 0.1


async def ask_master(
    files: RunFiles,
    request: Request,
    *,
    secret: pathlib.Path | None = None,
    running: Callable[[], bool] = lambda: True,
    within_s: float = ANSWER_S,
) -> Reply:
    """Send a request to the master. Retry until the master answers, `within_s` seconds have passed, or the job ends."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            key = bytes.fromhex((secret or files.secret).read_text().strip())
            where = addresses.read_master(files.master)
            if where is not None and where.address:
                return await ask_at(
                    where.local or where.address,
                    key,
                    request,
                    within_s=within_s,
                    certificates=files.certificates(RoleKind.AGENT),
                )
        except (errors.MasterUnreachable, OSError):
            if not running() or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise errors.MasterUnreachable(f"job {files.root.name} has no master yet; see {files.logs / 'master.log'}")
        await asyncio.sleep(AGAIN_S)


async def ask_at(address: str, secret: bytes, request: Request, *, within_s: float, certificates: str = "") -> Reply:
    master = await connection.connect(address, secret, within_s=0.5, certificates=certificates)
    try:
        async with asyncio.timeout(within_s):
            return await master.ask(request)
    except TimeoutError:
        raise errors.MasterUnreachable(f"the master at {address} does not answer") from None
    finally:
        await master.close()
