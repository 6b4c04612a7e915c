"""`springtide demo`: trains on a generated click log, whose best possible AUC is known; nothing is downloaded. During
training, the demo adds a server and kills a worker, a server and the master. The script, `demo_script.py`, is meant to
be read and copied.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from springtide import errors
from springtide.cli.common import render
from springtide.cli.common.options import Debug, Json, verb
from springtide.cli.common.render import print_json
from springtide.cli.job import run as running
from springtide.cli.job.run_options import run_options
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.local.job_handle import LocalJobHandle, places_of
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus
from springtide.rpc.transport import addresses
from springtide.telemetry import events, logs
from springtide.telemetry.logs import RunFiles

ADD_SERVER_AT, KILL_WORKER_AT, KILL_SERVER_AT, KILL_MASTER_AT = 0.15, 0.35, 0.55, 0.75
"""When the demo injects each fault, as a share of all samples."""
MASTER = "the master"

DATA = ".springtide/demo-data"
# seconds between checkpoints; short, because the job takes only minutes, and after the loss of a server little must be
# trained again
CHECKPOINT_EVERY_S = 3.0
SCRIPT = pathlib.Path(__file__).with_name("demo_script.py")


@dataclass(slots=True)
class DemoFaults:
    """The demo adds a server, and kills one worker, one server and one master during training. `cli.job.run.execute`
    calls this method with every status.
    """

    samples: int
    servers: int
    worker: str
    server: str
    asked: bool = False
    pids: dict[str, int] = field(default_factory=dict)

    def __call__(self, status: JobStatus, files: RunFiles, say: Callable[[str], None]) -> None:
        share = status.samples / self.samples
        if not self.asked:
            if share >= ADD_SERVER_AT:
                self.asked = True
                say(f"now: one more server, {self._added}; slots move to it while all workers train")
                threading.Thread(target=one_more, args=(files, self.servers + 1), daemon=True).start()
        elif self.worker not in self.pids:
            if share >= KILL_WORKER_AT:
                self._kill(self.worker, living(files, self.worker), "other workers get its unfinished shards", say)
        elif self.server not in self.pids:
            if share >= KILL_SERVER_AT and status.checkpoints.number:
                why = f"its slots come back from checkpoint {status.checkpoints.number}"
                self._kill(self.server, living(files, self.server), why, say)
        elif MASTER not in self.pids and share >= KILL_MASTER_AT:
            found = addresses.read_master(files.master)
            self._kill(MASTER, found.pid if found else 0, "the workers continue meanwhile", say)

    @property
    def _added(self) -> str:
        return f"server-{self.servers}"

    def _kill(self, whom: str, pid: int, then: str, say: Callable[[str], None]) -> None:
        if not pid:
            return
        # the process has just exited; try again with its next incarnation
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.pids[whom] = pid
            say(f"now: kill -9 {whom} (pid {pid}); {then}")

    def report(self, files: RunFiles) -> list[str]:
        story, lines = events.read(files.events), []
        moved = [event for event in story if event["event"] == "moved" and event["target"] == self._added]
        if moved:
            asked = next(event["at"] for event in story if self._added in str(event.get("what")))
            slots, until = sum(event["slots"] for event in moved), moved[-1]["at"]
            lines.append(
                f"added   {self._added}: it had {slots} slots after {until - asked:.1f} s, and training continued"
            )
        if (dead := end_of(story, self.worker, self.pids.get(self.worker))) is not None:
            back = after(story, dead, "joined", self.worker)
            gap = (
                "other workers did the work of the killed worker"
                if back is None
                else f"its next life joined {back['at'] - dead:.1f} s later"
            )
            lines.append(f"killed  {self.worker}: {gap}")
        if (dead := end_of(story, self.server, self.pids.get(self.server))) is not None:
            back = after(story, dead, "ready", self.server)
            gap = "the role did not return" if back is None else f"it served again {back['at'] - dead:.1f} s later"
            again = f", {back['samples_again']:,} clicks trained again" if back and "samples_again" in back else ""
            lines.append(f"killed  {self.server}: {gap}{again}")
        for event in story:
            if event["event"] == "master_replaced":
                lines.append(f"killed  the master: the next one listened {event['seconds']:.1f} s later")
        return lines


@verb("springtide demo")
def demo(
    servers: Annotated[int, typer.Option(min=1, help="Number of parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    samples: Annotated[
        int, typer.Option(min=1000, help="Number of events to generate; a tenth is held out for the test.")
    ] = 500_000,
    kill: Annotated[
        bool, typer.Option(help="Add a server, and kill a worker, a server and the master on the way.")
    ] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Train WideDeep on a generated click log whose best possible AUC is known.

    During training, the demo adds a server and kills a worker, a server and the master (kill -9). A table beside the
    model counts lost and repeated samples. The demo takes a minute or two.
    """
    script = os.path.relpath(SCRIPT)
    options = run_options(
        script=script,
        arguments=["--samples", str(samples), "--data", DATA],
        servers=servers,
        workers=workers,
        checkpoint_every=CHECKPOINT_EVERY_S,
        name="demo",
        debug=debug,
    )
    trained, worker, server = samples - samples // 10, f"worker-{workers - 1}", f"server-{servers - 1}"
    saboteur = DemoFaults(samples=trained, servers=servers, worker=worker, server=server) if kill else None
    status, files = running.execute(options, saboteur)
    print(
        text(status, files, script, saboteur)
        if status.phase is JobPhase.FINISHED
        else render.outcome_text(status, places_of(files, over=True), debug=debug)
    )
    print_json(render.status_object(status, places_of(files)), as_json)
    return render.exit_code(status)


def text(status: JobStatus, files: RunFiles, script: str, saboteur: DemoFaults | None = None) -> str:
    auc, best = status.training.metrics.get("test_auc"), status.training.metrics.get("best_auc")
    lines = [
        f"trained {status.samples:,} clicks in {status.training.trained_s:.1f} s: {render.rate(status):,.0f} samples/s"
    ]
    if saboteur:
        lines += saboteur.report(files)
    if "counted" in status.training.metrics:
        counted, lost, repeated = (round(status.training.metrics[name]) for name in ("counted", "lost", "repeated"))
        lines.append(f"counted {counted:,} clicks in a separate table: {lost:,} lost, {repeated:,} repeated")
    if auc is not None and best is not None:
        share = (auc - 0.5) / (best - 0.5)
        lines.append(f"AUC {auc:.4f} on later events; the generator's true model gets {best:.4f} ({share:.0%})")
    lines += [
        f"script  {script}",
        f"logs    {files.logs}",
        f"events  {files.events}",
        "",
        "What to try next:",
        *([] if shutil.which("springtide") else [f"  . {activate()}    # puts springtide on the PATH"]),
        f"  springtide explain {files.root.name}    # what happened meanwhile, and why",
        f"  cp {script} train.py",
        "  springtide run train.py --servers 3 --workers 2 -- --samples 1000000",
        "  python train.py         # the same script alone, in one process",
        "Three lines of the script are ours, marked <-; the rest is plain PyTorch.",
    ]
    return "\n".join(lines)


def activate() -> str:
    return os.path.relpath(pathlib.Path(sys.prefix) / "bin" / "activate")


def one_more(files: RunFiles, servers: int) -> None:
    """Ask for one more server. Ignore the error if the job ends meanwhile."""
    with contextlib.suppress(errors.SpringtideError, OSError, StopIteration):
        run = next(run for run in logs.find_runs(files.root.parent) if run.files.root == files.root)
        LocalJobHandle(run).ask(messages.ScaleRequest(None, servers, "one more, to show it"))


def living(files: RunFiles, role: str) -> int:
    joined = [event for event in events.read(files.events) if event["event"] == "joined" and event["role"] == role]
    return int(joined[-1]["pid"]) if joined else 0


def end_of(story: list[dict[str, Any]], role: str, pid: int | None) -> float | None:
    ends = [event for event in story if event["event"] == "exited" and event["role"] == role]
    return next((float(event["at"]) for event in ends if f"(pid {pid})" in str(event["how"])), None)


def after(story: list[dict[str, Any]], at: float, kind: str, role: str) -> dict[str, Any] | None:
    return next((e for e in story if e["event"] == kind and e["at"] > at and e["role"] == role), None)
