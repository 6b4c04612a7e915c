"""`springtide checkpoints`: lists the checkpoints of a job, one line each: time, size, outcome and location. The
command compares the sizes of all files with the manifest; with `--verify`, all bytes with their checksums.
"""

import os
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import open_store
from springtide.cli.common.options import RUNS, Job, JsonOnly, Runs, verb
from springtide.cli.common.render import print_result, wrap
from springtide.domain.core.resources import show_memory
from springtide.launch import job_lookup
from springtide.launch.checkpoint_list import at_place, listed
from springtide.telemetry import events as event_log


@verb("springtide checkpoints train --json", "springtide checkpoints s3://bucket/train --verify")
def checkpoints(
    job: Job = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all checksums; exit with 1 if a checkpoint is damaged.")
    ] = False,
    folder: Runs = RUNS,
    as_json: JsonOnly = False,
) -> int:
    """List the checkpoints of a job, of a folder or of a URL: time, size, outcome and place."""
    if job is not None and is_place(job):
        place = open_store(job)
        found, name = at_place(place, verify=verify), place.where
    else:
        run = job_lookup.pick_local(job, folder)
        found, name = listed(event_log.read(run.files.events), verify=verify), run.job
    print_result(text(name, found), {"job": name, "checkpoints": found}, as_json)
    return 1 if verify and any(row["outcome"] == "damaged" for row in found) else 0


def is_place(name: str) -> bool:
    """Return True for a URL or a folder of checkpoints, False for a job name."""
    if "://" in name or os.sep in name:
        return True
    return os.path.isdir(name) and bool(checkpoint_io.numbers(open_store(name)))


def text(job: str, found: Sequence[dict[str, Any]]) -> list[str]:
    if not found:
        return [f"job {job} has no checkpoints"]
    lines = [
        f"{'NUMBER':>6}  {'WHEN':<8}  {'SIZE':>8}  {'TOOK':>7}  {'KIND':<11}  {'OUTCOME':<9}  {'THERE':<5}  COPIED"
    ]
    for row in found:
        when = time.strftime("%H:%M:%S", time.localtime(row["at"])) if row["at"] else "-"
        size = show_memory(row["bytes"]) if row["bytes"] else "-"
        took = f"{row['seconds']:.2f} s" if row["seconds"] else "-"
        there = ("apart" if row["apart"] else "yes") if row["kept"] else "no"
        copied = "yes" if row["uploaded"] else "no"
        lines.append(
            f"{row['number']:>6}  {when:<8}  {size:>8}  {took:>7}  {row['kind'] or '-':<11}  {row['outcome']:<9}  "
            f"{there:<5}  {copied}"
        )
        lines += wrap(f"        {row['why']}", " " * 8) if row["why"] else []
    places = sorted({row["where"] for row in found if row["kept"]} | {row["uploaded"] for row in found} - {""})
    return [*lines, *(line for place in places for line in wrap(f"in      {place}"))]
