"""`springtide explain-split train.py`: shows which work of a script data workers could do, which work stays in the
trainer, and why.

The script runs alone, without a job, for a few batches (worker/explain_split.py). Exit code 1 if the script raised, 2
if it trains nothing.
"""

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from springtide import config, errors
from springtide.cli.common.options import Debug, Json, verb
from springtide.cli.common.render import print_json, wrap
from springtide.dataworker.split.report import ScriptReport
from springtide.launch.spec.resolve import find_script

USER, USAGE = 1, 2


@verb("springtide explain-split train.py -- --epochs 1", name="explain-split")
def explain_split(
    script: Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.", metavar="-- ARGS")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Give the script this long to train a few batches.", metavar="SECONDS")
    ] = (300.0),
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Explain which part of forward() data workers could run: moved and remaining calls with reasons, bytes and cost.

    Runs the script alone in a separate process, for a few batches, and keeps no trained state.
    """
    found = find_script(pathlib.Path(script))
    report = observe([str(found), *(arguments or ())], timeout_s=timeout)
    if report.error:
        typer.echo("\n".join(wrap(f"error: {found.name}: {report.error}", "  ")), err=True)
        if debug and report.trace:
            typer.echo(report.trace, err=True)
    elif not as_json:
        typer.echo(text_of(found.name, report))
    print_json({"script": str(found), **msgspec.to_builtins(report)}, as_json)
    return 0 if not report.error else USER if report.blame == "script" else USAGE


def observe(script: Sequence[str], *, timeout_s: float) -> ScriptReport:
    with tempfile.TemporaryDirectory(prefix="springtide-explain-") as folder:
        file = pathlib.Path(folder, "report.json")
        command = [sys.executable, "-m", "springtide.worker.explain_split", str(file), *script]
        try:
            ended = subprocess.run(
                command, stdout=sys.stderr, env=config.child_environment({}, {}), timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise errors.BadInput(
                f"{script[0]} has not trained a few batches after {timeout_s:g} s; give it more time (--timeout) or "
                "less data"
            ) from None
        if not file.exists():
            raise errors.JobFailed(f"the process that ran {script[0]} ended with status {ended.returncode}")
        return msgspec.json.decode(file.read_bytes(), type=ScriptReport)


def text_of(name: str, report: ScriptReport) -> str:
    lines = []
    if report.called:
        lines.append(f"{name} calls its model at {report.called}.")
    if report.read_s:
        lines.append(f"Reading and collating a batch takes {report.read_s * 1e3:.2f} ms, and can move.")
    if report.text:
        lines += ["", report.text.rstrip()]
    elif report.why:
        lines += [*wrap(f"forward() stays whole: {report.why}", "  ")]
    if report.left:
        lines += ["", *wrap(f"Not sent, because only moved operations read it: {', '.join(report.left)}", "  ")]
    if report.touched:
        lines += [
            "",
            *wrap(f"Sent because the loop reads it, but the model does not: {', '.join(report.touched)}", "  "),
        ]
    if report.found_s:
        lines += ["", f"Found in {report.found_s:.2f} s, from the loop's own calls of the model."]
    return "\n".join(lines)
