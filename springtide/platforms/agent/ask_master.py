"""Sends a request to the master of a run on this host, and retries while the master is replaced.

In: `master.json` and the secret of a run, and a request. Out: the master's reply. Used for local runs, and by processes
on a cluster that forward requests of clients.
"""

import asyncio
import pathlib
import time
from collections.abc import Callable

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.transport import connection, master_file
from springtide.telemetry.logs import RunFiles

ANSWER_S = 15.0  # a replaced master is back within seconds
AGAIN_S = 0.1


async def ask(
    files: RunFiles,
    request: messages.Request,
    *,
    secret: pathlib.Path | None = None,
    running: Callable[[], bool] = lambda: True,
    within_s: float = ANSWER_S,
) -> messages.Reply:
    """Retry until the master answers, `within_s` has passed or the job ends."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            key = bytes.fromhex((secret or files.secret).read_text().strip())
            where = master_file.read(files.master)
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


async def ask_at(
    address: str, secret: bytes, request: messages.Request, *, within_s: float, certificates: str = ""
) -> messages.Reply:
    master = await connection.connect(address, secret, within_s=0.5, certificates=certificates)
    try:
        async with asyncio.timeout(within_s):
            return await master.ask(request)
    except TimeoutError:
        raise errors.MasterUnreachable(f"the master at {address} does not answer") from None
    finally:
        await master.close()
