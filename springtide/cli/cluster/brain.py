"""`springtide brain serve | status | history | executors`: a brain for many masters."""

import asyncio
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from springtide import errors
from springtide.brain.decide import triggers
from springtide.brain.decide.cluster_state import BrainRules
from springtide.brain.service import messages as brain_messages
from springtide.brain.service import queries
from springtide.brain.service import serve as service
from springtide.brain.store import store
from springtide.cli.common.options import Debug, JsonOnly, command, pairs, verb_group
from springtide.cli.common.render import print_result, short_time, wrap
from springtide.domain.core.resources import parse_memory, show_memory
from springtide.domain.core.shape import UNKNOWN_GPUS, ResourceBudget
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.launch.spec import field_overrides
from springtide.planning.policy import registry
from springtide.rpc.messages import messages
from springtide.telemetry import logs
from springtide.telemetry.host import gpus

T = TypeVar("T")
FOLDER = queries.FOLDER
LISTEN = "127.0.0.1:7790"

group = verb_group(
    "brain",
    "Serve a brain, which plans for many jobs, or inspect one.",
    "springtide brain serve --capacity 64,256G",
    "springtide brain status",
    "springtide brain executors 4",
)

Folder = Annotated[str, typer.Option("--folder", help="Folder of the brain's files.", metavar="DIR")]
SecretFile = Annotated[
    str, typer.Option("--secret-file", help="Secret of the brain.  [default: from its folder]", metavar="FILE")
]
ServeTls = Annotated[
    str,
    typer.Option(
        "--tls", help="Use TLS with certificates in DIR/brain and DIR/master, created if missing.", metavar="DIR"
    ),
]
EventPolicies = Annotated[
    list[str] | None,
    typer.Option(
        help="Use another policy on an event: oom, created, slow, iterating, periodic.", metavar="EVENT=POLICY"
    ),
]
Planning = Annotated[
    list[str] | None,
    typer.Option(help="Set a planning parameter, such as rho=1 or prices.cpu=2.", metavar="NAME=VALUE"),
]
Capacity = Annotated[
    str,
    typer.Option(help="Cores, memory and GPUs of all jobs.  [default: this machine]", metavar="CORES[,SIZE[,GPUS]]"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainAddress:
    """Address of a brain, and the credentials to connect to it."""

    folder: Folder = FOLDER
    brain: Annotated[
        str, typer.Option("--brain", help="Address of the brain.  [default: from its folder]", metavar="HOST:PORT")
    ] = ""
    secret_file: SecretFile = ""
    tls: Annotated[
        str, typer.Option("--tls", help="Certificates of the client.  [default: from its folder]", metavar="DIR")
    ] = ""


@command(
    group,
    "springtide brain serve --listen 0.0.0.0:7790 --capacity 64,256G \\\n"
    "    --database postgresql://brain@db/brain --executors 2",
)
def serve(
    listen: Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")] = LISTEN,
    database: Annotated[
        str, typer.Option(help="Database, sqlite:/// or postgresql://.  [default: in DIR]", metavar="URL")
    ] = "",
    policy: Annotated[str, typer.Option(help="Built-in policy, plug-in or module:function.")] = "springtide",
    on: EventPolicies = None,
    planning: Planning = None,
    capacity: Capacity = "",
    executors: Annotated[int, typer.Option(min=1, help="Number of processes that compute plans.")] = 1,
    period: Annotated[float, typer.Option(help="Time between two decisions on a job.", metavar="SECONDS")] = 10.0,
    forget: Annotated[
        float, typer.Option(help="Forget a job after this long without a request.", metavar="SECONDS")
    ] = 600.0,
    folder: Folder = FOLDER,
    secret_file: SecretFile = "",
    tls: ServeTls = "",
    standby: Annotated[
        bool, typer.Option("--standby", help="Stand by while another brain serves from the database, then take over.")
    ] = False,
    health: Annotated[str, typer.Option(help="Serve the probes /live and /ready here.", metavar="HOST:PORT")] = "",
    debug: Debug = False,
) -> int:
    """Serve a brain until Ctrl-C. A brain keeps jobs and promises in its database, so a restart loses nothing."""
    logs.log_to_stderr(debug=debug)
    algorithms = triggers.checked(pairs("--on", on, "oom=static or 'slow/straggler=static'"))
    for name in {policy, *algorithms.values()}:
        registry.load(name)  # report a wrong name immediately
    config = planning_config(pairs("--planning", planning, "rho=1"), policy)
    rules = BrainRules(
        capacity=parse_capacity(capacity), config=config, algorithms=algorithms, period_s=period, forget_s=forget
    )
    options = service.ServeOptions(
        rules=rules,
        folder=pathlib.Path(folder),
        listen=listen,
        database=database,
        secret_file=secret_file,
        executors=executors,
        tls=tls,
        standby=standby,
        health=health,
    )
    needs = f"its secret, {secret_file or service.secret_file(pathlib.Path(folder))}"
    needs += f", and the certificates in {tls}/master" if tls else ""

    def announce(address: str) -> None:
        print(f"brain: serving at {address}; masters need {needs}", file=sys.stderr, flush=True)

    asyncio.run(service.serve(options, ready=announce))
    print("brain: stopped", file=sys.stderr)
    return 0


@command(group, "springtide brain status --json")
def status(*, at: BrainAddress, as_json: JsonOnly = False) -> int:
    """Show the jobs, decisions and executors of a brain. For each job, show the brain's last decision and the reason
    for it.
    """
    found = ask(brain_messages.Inspect(), brain_messages.BrainStatus, at)
    print_result(status_lines(found), without_type(found), as_json)
    return 0


@command(group, "springtide brain history --newest 50", "springtide brain history --database .springtide/history.db")
def history(
    at: BrainAddress,
    newest: Annotated[int, typer.Option(min=1, max=1000, help="Number of jobs to list.")] = 20,
    database: Annotated[
        str, typer.Option(help="Read this database without a brain: a file or a URL.", metavar="FILE_OR_URL")
    ] = "",
    as_json: JsonOnly = False,
) -> int:
    """List past jobs, oldest first. The jobs are those in a brain's database, or in a database of jobs that planned by
    themselves.
    """
    found = (
        read_history(database, newest) if database else ask(brain_messages.Recall(newest), brain_messages.Recalled, at)
    )
    print_result(history_lines(found), without_type(found), as_json)
    return 0


@command(group, "springtide brain executors 4")
def executors(
    at: BrainAddress,
    number: Annotated[int, typer.Argument(min=1, help="Number of processes that compute plans.", metavar="N")],
) -> int:
    """Change the number of executors. Surplus executors finish their current plan."""
    ask(brain_messages.ResizeExecutors(number), messages.Ok, at)
    print(f"{number} executor{'s' if number > 1 else ''} from now on")
    return 0


def parse_capacity(text: str) -> ResourceBudget:
    """Parse a capacity such as "64", "64,256G" or "64,256G,8"; empty text means all resources of this machine."""
    if not text:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return ResourceBudget(cpu=float(len(os.sched_getaffinity(0))), memory=float(memory), gpu=len(gpus.visible()))
    cores, _, rest = text.partition(",")
    size, _, cards = rest.partition(",")
    try:
        cpu, gpu = float(cores), float(int(cards)) if cards else UNKNOWN_GPUS
    except ValueError:
        raise errors.BadInput(
            f"--capacity {text!r}: expected CORES, CORES,SIZE or CORES,SIZE,GPUS, such as 64,256G,8"
        ) from None
    found = ResourceBudget(cpu=cpu, memory=float(parse_memory(size)) if size else math.inf, gpu=gpu)
    if not (found.cpu and found.memory):
        raise errors.BadInput(f"--capacity {text!r}: no job fits into this capacity; expected more than 0 of each")
    return found


def planning_config(given: Mapping[str, str], policy: str) -> PlanningConfig:
    found: PlanningConfig
    settable = field_overrides.planning_fields(policy=False)
    (found,) = field_overrides.changed(given, (PlanningConfig(policy=policy), settable))
    return found


def ask(request: Any, kind: type[T], at: BrainAddress) -> T:
    where = queries.BrainLocation(folder=at.folder, address=at.brain, secret_file=at.secret_file, tls=at.tls)
    return queries.ask(request, kind, where)


def read_history(database: str, newest: int) -> brain_messages.Recalled:
    path = database.removeprefix("sqlite:///")
    if "://" not in path and not pathlib.Path(path).is_file():
        raise errors.MissingFile(f"--database {database}: there is no such file; a job with planning creates one")
    opened = store.open_store(database)
    try:
        found = opened.history(newest=newest)
        return brain_messages.Recalled(jobs=found.jobs, unreadable=found.unreadable, total=opened.count())
    finally:
        opened.close()


def status_lines(found: brain_messages.BrainStatus) -> list[str]:
    room = found.capacity
    limit = "" if room.memory == float("inf") else f" of {show_memory(int(room.memory))}"
    lines = wrap(
        f"brain at {found.address} (pid {found.pid}), up {short_time(found.up_s)}: {len(found.jobs)} live jobs, "
        f"{found.past:,} past jobs in {found.database}"
    )
    lines += wrap(
        f"holds   {found.held.cpu:,.4g} of {room.cpu:,.4g} cores, memory {show_memory(int(found.held.memory))}{limit}"
        + (
            f", {found.held.gpu:g}{'' if room.gpu == UNKNOWN_GPUS else f' of {room.gpu:g}'} GPUs"
            if 0 < found.held.gpu < UNKNOWN_GPUS
            else ""
        )
    )
    lines += wrap(
        f"works   {len(found.executors.pids)} of {found.executors.wanted} executors up, {found.executors.lost} lost; "
        f"{found.consults:,} consults, {found.decisions:,} decisions, the last in {found.decision_s:.2f} s"
    )
    lines += wrap("asks    " + ", ".join(f"{event}: {policy}" for event, policy in found.policies.items()))
    if found.unreadable:
        lines += wrap(f"skipped {found.unreadable} past jobs with unreadable records")
    if found.trouble:
        lines += wrap(f"trouble {found.trouble}")
    for job in found.jobs:
        lines += [
            "",
            *wrap(f"{job.name}: {job.stage}, {job.shape or 'no shape yet'}, seen {short_time(job.seen_s)} ago"),
        ]
        if job.event:
            lines += wrap(f"  {job.event} ({job.cause}), asked {job.policy}")
        if job.promised:
            lines += wrap(f"  becomes {job.promised}")
        if job.why:
            lines += wrap(f"  {job.why}")
    return lines


def history_lines(found: brain_messages.Recalled) -> list[str]:
    def side(count: int, cpu: float, memory: int) -> str:
        return f"{count} x {cpu:g} CPU" + (f", {show_memory(memory)}" if memory else "")

    lines = [f"{'ENDED':<16} {'JOB':<18} {'OUTCOME':<8} {'WORKERS':<17} SERVERS"]
    for past in found.jobs:
        try:
            ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(past.ended_at))
        except (OverflowError, ValueError, OSError):
            # the time is no valid date: the machine's clock was never set, or someone edited the row by hand
            ended = f"{past.ended_at:g}"
        outcome = "finished" if past.finished else "failed"
        workers = servers = "-"
        if (shape := past.shape) is not None:
            workers = side(shape.workers, shape.worker_cpu, shape.worker_memory)
            servers = side(shape.servers, shape.server_cpu, shape.server_memory)
        lines.append(f"{ended:<16} {past.name[:18]:<18} {outcome:<8} {workers:<17} {servers}"[:80].rstrip())
    skipped = f"; {found.unreadable} of them unreadable" if found.unreadable else ""
    return [*lines, f"{len(found.jobs)} of {found.total:,} past jobs{skipped}"]


def without_type(found: brain_messages.BrainStatus | brain_messages.Recalled) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(found).items() if name != "type"}
