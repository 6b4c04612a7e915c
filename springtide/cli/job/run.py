"""`springtide run`: runs a job on this machine, with a live view on standard error and the outcome on standard output.

The options become an `ElasticJob`. Next: `launch.local_job` runs the job, `cli.show.live_view` shows it.
"""

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from springtide import errors
from springtide.cli.common import render
from springtide.cli.common.options import pairs, verb
from springtide.cli.common.render import wrap
from springtide.cli.job.run_options import RUN_OPTIONS, RUN_PARAMETERS
from springtide.cli.show import live_view
from springtide.dashboard.dormant_server import DormantServer
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob, FollowingWish, PatienceWish, Quota, RoleWish
from springtide.launch import local_job
from springtide.launch.spec import resolve
from springtide.platforms.local import job_handle
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs, output

Witness = Callable[[JobStatus, logs.RunFiles, Callable[[str], None]], None]
PARTS: dict[str, Any] = {
    "workers": RoleWish,
    "servers": RoleWish,
    "quota": Quota,
    "patience": PatienceWish,
    "checkpoints": CheckpointWish,
    "following": FollowingWish,
}


@verb("springtide run train.py --servers 2 --workers 2 -- --epochs 3", parameters=RUN_PARAMETERS)
def run(**given: Any) -> int:
    """Run a training script on this machine: one master, parameter servers and workers.

    The job finds the number of servers and workers that it needs. Numbers that you give stay fixed. Ctrl-C drains the
    job: the workers finish their current batch, and the job writes a checkpoint. A second Ctrl-C kills the job.
    """
    status, files = execute(given)
    code = render.exit_code(status)
    places = job_handle.places_of(files, over=True)
    print(render.outcome_text(render.called(status, files.root.name), places, debug=given["debug"]))
    render.print_json(render.status_object(status, places), given["as_json"])
    return code


def execute(given: Mapping[str, Any], witness: Witness | None = None) -> tuple[JobStatus, logs.RunFiles]:
    output.keep_going()  # the job must continue even if the reader of its output exits
    begun = local_job.begin(job_of(given), pathlib.Path(given["logs"]), code=pathlib.Path(), say=print_line)
    begun = replace(begun, plan=replace(begun.plan, **{name: given[name] for name in ("port", "debug", "tls")}))
    return asyncio.run(_run(begun, given["dashboard"], witness, plain=given["plain"])), begun.files


async def _run(begun: local_job.PreparedRun, dashboard: str, witness: Witness | None, *, plain: bool) -> JobStatus:
    shown = live_view.open_view(begun.plan, begun.files, plain=plain)

    def on_status(status: JobStatus) -> None:
        shown.update(render.called(status, begun.files.root.name))
        if witness:
            witness(status, begun.files, shown.say)

    with shown:
        async with contextlib.AsyncExitStack() as beside:
            if dashboard != "off":
                page = await beside.enter_async_context(DormantServer(begun.files, port_of(dashboard)))
                shown.say(f"dashboard {page.url}")
            return await local_job.attend(begun, say=shown.say, seen=on_status)


def port_of(text: str) -> int:
    """Return the port that an option names; 0 for "auto"."""
    if text != "auto" and not (text.isdecimal() and int(text) < 2**16):
        raise errors.BadInput(f"--dashboard {text}: expected a port such as 8470, auto or off")
    return 0 if text == "auto" else int(text)


def print_line(line: str) -> None:
    print("\n".join(wrap(output.redact(line))), file=sys.stderr)


def job_of(given: Mapping[str, Any]) -> ElasticJob:
    """Build the job's spec: each option sets the fields that `RUN_OPTIONS` names."""
    spec: dict[str, Any] = {part: {} for part in PARTS}
    for option in RUN_OPTIONS:
        value = given[option.name]
        if option.example:
            value = pairs(option.flag, value, option.example)  # `resolve` converts the values
        for path in option.fields:
            part, _, name = path.rpartition(".")
            (spec[part] if part else spec)[name] = value
    workers = spec["workers"]
    workers["min"] = given["min_workers"] if given["min_workers"] > 1 else None
    if workers["count"] is not None and (workers["min"], workers["max"]) != (None, None):
        workers["start"] = workers.pop("count")
    if given["online"] not in ("auto", "off"):
        raise errors.UnknownName("mode of --online", given["online"], ("auto", "off"))
    spec["following"]["on"] = given["online"] == "auto"
    return ElasticJob(
        name=given["name"] or resolve.name_of(given["script"]),
        script=given["script"],
        arguments=tuple(given["arguments"] or ()),
        resume=run_folder_of(given["resume"], given["logs"]),
        continue_from=run_folder_of(given["continue_from"], given["logs"]),
        **{name: PARTS[name](**value) if name in PARTS else value for name, value in spec.items()},
    )


def run_folder_of(named: str, runs: str) -> str:
    """Resolve the value of --resume or --continue-from: a run's name becomes the run's folder; a path or URL is
    unchanged."""
    run = pathlib.Path(runs, named)
    plain = pathlib.Path(named).name == named and not pathlib.Path(named).exists()
    return str(run) if named and plain and run.is_dir() else named
