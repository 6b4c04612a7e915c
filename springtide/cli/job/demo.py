"""`springtide demo`: a job on a generated click log, whose best possible AUC is known. Nothing to download.

In: how many of what. Out: the live view of `springtide run`, a server added and a worker, a server and the master
killed on the way (`demo_faults.py`), then how long nobody trained, whether any sample was lost or repeated, how near
the model came, how fast, and what to try next. The script that is run, `demo_script.py`, is there to be read and
copied.
"""

import os
import pathlib
import shutil
import sys
import tempfile

import msgspec

from springtide.cli.common import exit_status
from springtide.cli.common.options import KeepingOptions, RunOptions, SizeOptions
from springtide.cli.job import run as running
from springtide.cli.job.demo_faults import DemoFaults
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.local.job_handle import places_of
from springtide.rpc.messages.messages import JobStatus
from springtide.telemetry.logs import RunFiles

DATA = ".springtide/demo-data"
CHECKPOINT_EVERY_S = 3.0  # a job of minutes: so that not all of it is trained again when a server dies
SCRIPT = pathlib.Path(__file__).with_name("demo_script.py")


def demo(*, servers: int, workers: int, samples: int, kill: bool, as_json: bool, debug: bool) -> int:
    with tempfile.TemporaryDirectory() as steps:
        return _demo(servers, workers, samples, kill=kill, as_json=as_json, debug=debug, steps=steps)


def _demo(servers: int, workers: int, samples: int, *, kill: bool, as_json: bool, debug: bool, steps: str) -> int:
    script = os.path.relpath(SCRIPT)
    options = RunOptions(
        script=script,
        arguments=["--samples", str(samples), "--data", DATA, "--steps", steps],
        sizes=SizeOptions(servers=servers, workers=workers),
        keeping=KeepingOptions(checkpoint_every=CHECKPOINT_EVERY_S),
        name="demo",
        debug=debug,
    )
    trained, worker, server = samples - samples // 10, f"worker-{workers - 1}", f"server-{servers - 1}"
    saboteur = DemoFaults(samples=trained, servers=servers, worker=worker, server=server, steps=steps) if kill else None
    status, files = running.execute(options, saboteur)
    print(
        text(status, files, script, saboteur)
        if status.phase is JobPhase.FINISHED
        else exit_status.text(status, places_of(files), debug=debug)
    )
    if as_json:
        print(msgspec.json.encode(exit_status.as_object(status, places_of(files))).decode())
    return exit_status.exit_code(status)


def text(status: JobStatus, files: RunFiles, script: str, saboteur: DemoFaults | None = None) -> str:
    auc, best = status.metrics.get("test_auc"), status.metrics.get("best_auc")
    lines = [f"trained {status.samples:,} clicks in {status.trained_s:.1f} s: {rate(status):,.0f} samples/s"]
    if saboteur:
        lines += saboteur.report(files)
    if "counted" in status.metrics:
        counted, lost, repeated = (round(status.metrics[name]) for name in ("counted", "lost", "repeated"))
        lines.append(f"counted {counted:,} clicks in a table beside the model: {lost:,} lost, {repeated:,} repeated")
    if auc is not None and best is not None:
        share = (auc - 0.5) / (best - 0.5)
        lines.append(f"AUC {auc:.4f} on later events; the generator's own truth gets {best:.4f} ({share:.0%})")
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


def rate(status: JobStatus) -> float:
    return status.samples / status.trained_s if status.trained_s else 0.0
