"""A real brain in the test's event loop, masters that call it, and lying replacements."""

import asyncio
import contextlib
import pathlib

from springtide.brain.decide.cluster_state import BrainRules
from springtide.brain.service import messages, serve
from springtide.brain.service.advisers import RemoteAdviser
from springtide.domain.core.shape import ResourceBudget
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.rpc.transport import auth, frames, tls

SECRET = bytes(range(32))
CAPACITY = ResourceBudget(cpu=100.0, memory=1e15)


def options(folder: pathlib.Path, **more):
    rules = BrainRules(
        capacity=more.pop("capacity", CAPACITY), config=PlanningConfig(exact_seconds=0), **more.pop("rules", {})
    )
    return serve.ServeOptions(rules=rules, folder=folder, listen="127.0.0.1:0", **({"gather_s": 0.01} | more))


@contextlib.asynccontextmanager
async def brain(folder, **more):
    async with serve.serving(options(folder, **more)) as service:
        yield service


@contextlib.asynccontextmanager
async def master(folder, service, **more):
    secret = bytes.fromhex(serve.secret_file(folder).read_text())
    remote = RemoteAdviser(service.address, secret, **more)
    try:
        yield remote
    finally:
        await remote.close()


@contextlib.asynccontextmanager
async def lying_brain(answer, *, knows_secret=True, certificates=""):
    """Listen like a brain; `answer(call)` gives the bytes to send, or None for silence."""
    connections = set()

    async def serve(reader, writer):
        connections.add(asyncio.current_task())
        with contextlib.suppress(OSError, EOFError, auth.Rejected, frames.BadFrame, asyncio.CancelledError):
            await tls.admit(writer, certificates)
            await auth.challenge(reader, writer, SECRET if knows_secret else b"x" * 32, 0)
            while True:
                said = answer(await frames.read(reader, messages.CALLS))
                if said is not None:
                    writer.write(said)
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
