"""Upload a server's checkpoint files to storage in a separate process, if its disk is not shared.

In: copy orders, which a thread requests from the master. The process runs `checkpoint.transfer.upload`. Out: a
`CopyReport`. When all servers have uploaded their parts, the master publishes the manifest in storage
(`master.checkpoint.server_copies`).
"""

import contextlib
import logging
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from springtide import config, errors
from springtide.checkpoint.transfer.upload import Uploaded
from springtide.rpc.messages import messages

log = logging.getLogger(__name__)

ENDS_S = 10.0  # seconds to wait for the end of a process that has reported its result


def send(folder: pathlib.Path, order: messages.CopyOrder) -> messages.CopyReport:
    files = msgspec.json.encode(order.files).decode()
    command = [sys.executable, "-m", "springtide.checkpoint.transfer.upload"]
    environment = config.with_arguments(["part", str(folder), order.url, files])
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None and process.stdin is not None
        said = next((line for line in process.stdout if line.startswith(b"{")), b"")
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in a mount cannot be killed
            code = process.wait(ENDS_S)
        process.stdin.close()
        process.stdout.close()
        done = (
            msgspec.json.decode(said, type=Uploaded)
            if said
            else Uploaded(error=f"its process ended with status {code}")
        )
    except (OSError, msgspec.MsgspecError) as error:
        done = Uploaded(error=f"its process failed: {error}")
    if done.error:
        log.warning("copies to %s: %s", order.url, done.error)
    return messages.CopyReport(order.id, done.files, done.bytes, done.lacks, done.error)


def start(
    folder: pathlib.Path, ask: Callable[[messages.Request], messages.Reply], over: threading.Event
) -> threading.Thread:
    """Run the master's copy orders in a thread until the server leaves."""

    def attend() -> None:
        done = 0
        try:
            while not over.is_set():
                order = ask(messages.CopyRequest(done))
                if isinstance(order, messages.HeartbeatReply):  # the job is over
                    return
                if isinstance(order, messages.CopyOrder):
                    done = order.id
                    ask(send(folder, order))
        except errors.SpringtideError as error:
            if not over.is_set():
                log.warning("no more copies to storage: %s", error)

    thread = threading.Thread(target=attend, name="springtide-copies", daemon=True)
    thread.start()
    return thread
