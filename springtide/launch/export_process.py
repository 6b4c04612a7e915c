"""Exports a job's checkpoints repeatedly: `springtide export --every`, and a process beside a running job."""

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from springtide import config, errors
from springtide.checkpoint.format.storage import open_store
from springtide.domain.core import validation
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.platforms.agent.side_process import SideProcess
from springtide.telemetry import logs, output

if TYPE_CHECKING:
    from springtide.export.exporter import ContinuousExport

AGAIN_S = 5.0  # seconds to wait after a failed export


def follow(
    where: str,
    url: str,
    *,
    every_s: float,
    format: str = "safetensors",
    ended: threading.Event | None = None,
    copies: str = "",
) -> int:
    """Export every `every_s` seconds until a signal or `ended`; then export once more."""
    from springtide.export import table_files
    from springtide.export.exporter import ContinuousExport

    also = open_store(copies) if copies else None
    chosen = validation.choice(format, "format", table_files.FORMATS)
    following = ContinuousExport(open_store(where), url, format=chosen, copies=also)
    ended = ended or threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    wait_s, last_error = first_wait_s(following, every_s), ""
    while True:
        last = ended.wait(wait_s)
        try:
            card = following.once()
            wait_s, last_error = every_s, ""
        except (errors.BadInput, OSError) as error:  # the job deleted the checkpoint meanwhile, and has a newer one
            if str(error) != last_error:
                print(output.redact(f"no export: {error}"), file=sys.stderr, flush=True)
            card, wait_s, last_error = None, min(every_s, AGAIN_S), str(error)
        if card is not None:
            what = "whole" if card.since is None else f"since {card.since}"
            print(f"export {card.number} ({what}): {card.rows:,} rows, {card.samples:,} samples trained", flush=True)
        if last:
            return 1 if last_error else 0


def first_wait_s(following: "ContinuousExport", every_s: float) -> float:
    try:
        return following.due_s(every_s, now=time.time())
    except (errors.SpringtideError, OSError):
        return every_s


def exporter(files: logs.RunFiles, rules: CheckpointRules, url: str, *, every_s: float) -> SideProcess:
    where = f"{rules.folder}/{files.root.name}" if rules.folder else str(files.checkpoints)
    module = "springtide.launch.export_process"
    return SideProcess(module, [where, url, f"{every_s:g}", rules.url], files.logs / "exports.log")


def main() -> int:
    """Arguments: WHERE URL SECONDS COPIES. Ends when the agent closes standard input."""
    where, url, every, copies = config.own_arguments(sys.argv[1:])
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, name="springtide-exporter", daemon=True).start()
    return follow(where, url, every_s=float(every), ended=ended, copies=copies)


if __name__ == "__main__":
    sys.exit(main())
