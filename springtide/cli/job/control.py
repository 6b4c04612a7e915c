"""`springtide scale`, `stop` and `logs`: change a running job from outside, or read its logs."""

import itertools
import os
import time
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.common.options import Job, Json, WhereOptions, verb
from springtide.cli.common.render import print_json, print_result
from springtide.launch import job_lookup
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages import messages

POLL_S = 0.2
WORKERS_A_CORE = 8  # a larger number of workers is probably a typing mistake


@verb("springtide scale train --workers 4 --servers 2 --data-workers 3")
def scale(
    at: WhereOptions,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Number of servers; slots move while they serve.")] = None,
    data_workers: Annotated[int | None, typer.Option(min=0, help="Number of data workers; 0 for none.")] = None,
    job: Job = None,
    sure: Annotated[bool, typer.Option("--yes", help="Accept far more roles than there are cores.")] = False,
    as_json: Json = False,
) -> int:
    """Scale a running job. New roles join and surplus roles drain, while all other roles continue to train.

    After you set the number of data workers by hand, the job no longer tunes this number.
    """
    counts = {"workers": workers, "servers": servers, "data_workers": data_workers}
    given = {kind: count for kind, count in counts.items() if count is not None}
    if not given:
        raise errors.BadInput("give a number: --workers N, --servers N or --data-workers N, or several of them")
    reach = job_lookup.find(job, at.where())
    most = WORKERS_A_CORE * (os.cpu_count() or 1)
    for kind, count in given.items():
        if count > most and not sure and reach.platform == "local":
            raise errors.BadInput(
                f"{count_of(kind, count)}: this machine has {os.cpu_count()} cores, and more than {most} processes "
                f"would mostly wait for each other. Nothing was changed; --yes scales anyway"
            )
    reach.ask(messages.ScaleRequest(workers, servers, data_workers=data_workers))
    text = " and ".join(count_of(kind, count) for kind, count in given.items())
    print(f"job {reach.name}: {text} requested; see `springtide status {reach.name}`")
    print_json({"job": reach.name, **given}, as_json)
    return 0


def count_of(kind: str, count: int) -> str:
    noun = kind.removesuffix("s").replace("_", " ")
    return f"{count} {noun}{'' if count == 1 else 's'}"


@verb("springtide stop train --wait")
def stop(
    at: WhereOptions,
    job: Job = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job is over.")] = False,
    as_json: Json = False,
) -> int:
    """Drain a running job, as Ctrl-C does: workers finish their batch and stop."""
    reach = job_lookup.find(job, at.where())
    reach.ask(messages.StopRequest("stopped by `springtide stop`"))
    print(f"job {reach.name}: draining, workers finish their current batch")
    while wait and reach.running():
        time.sleep(POLL_S)
    status = reach.status()
    if wait:
        print(f"job {reach.name}: {status.phase}")
    print_json({"job": reach.name, "phase": status.phase}, as_json)
    return 0


@verb("springtide logs train worker-1 -f")
def logs(
    at: WhereOptions,
    job: Job = None,
    role: Annotated[str | None, typer.Argument(help="Role, such as worker-1.  [default: all]", metavar="ROLE")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the logs until the job is over.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="Number of last lines to print of each log.")] = 20,
    as_json: Json = False,
) -> int:
    """Print the last lines of each role's log; with -f, follow them."""
    reach = job_lookup.find(job, at.where())
    known = reach.roles()
    if role is not None and role not in known:
        raise errors.UnknownName(f"role of job {reach.name}", role, known)
    chosen = [role] if role is not None else []
    return followed(reach, chosen, lines, as_json=as_json) if follow else tails(reach, chosen, lines, as_json=as_json)


def tails(reach: JobHandle, chosen: list[str], lines: int, *, as_json: bool) -> int:
    found: dict[str, list[str]] = {role: [] for role in (chosen or reach.roles())}
    for role_name, some in itertools.groupby(reach.logs(chosen, lines=lines, follow=False), key=lambda line: line.role):
        found.setdefault(role_name, []).extend(line.text for line in some)
    text = (part for name, lines in found.items() for part in (f"==> {name} <==", *(lines or ["(empty)"])))
    print_result(text, {"job": reach.name, "logs": found}, as_json)
    return 0


def followed(reach: JobHandle, chosen: list[str], lines: int, *, as_json: bool) -> int:
    count = 0
    try:
        for line in reach.logs(chosen, lines=lines, follow=True):
            count += 1
            print(line.text if chosen else f"{line.role:<13} | {line.text}", flush=True)
    except KeyboardInterrupt:
        print(f"\njob {reach.name} continues; `springtide stop {reach.name}` ends it")
    print_json({"job": reach.name, "lines": count}, as_json)
    return 0
