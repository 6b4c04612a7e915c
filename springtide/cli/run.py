"""`springtide run`: the local agent. Fills in what the user left open, runs the job, says how it went.

In: the options of the command line. Out: a live view on standard error, the outcome on standard output (its first line
is the user's error if there was one), an exit code. Next: `platforms.agent` does the work, `cli.view` shows it.
"""

import asyncio
import difflib
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from springtide import errors
from springtide.cli import feeding, keeping, outcome, sizing, view
from springtide.cli import online as streams
from springtide.cli.exporting import Exporter, ExportOptions
from springtide.domain import caching, job, own_machine, resources
from springtide.domain.guarding import GuardRules
from springtide.domain.straggling import StragglerRules
from springtide.platforms.agent import Agent, RunPlan
from springtide.platforms.local import LocalPlatform
from springtide.rpc import messages
from springtide.telemetry import logs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was given on the command line; None is left open."""

    script: str
    arguments: tuple[str, ...] = ()
    servers: int | None = None
    workers: int | None = None
    cpu: float | None = None
    memory: str | None = None
    sync: str = "async"
    cache: str = "auto"
    cache_staleness: int | None = None
    allocation: str | None = None
    name: str | None = None
    logs: str = ".springtide/runs"
    seed: int = 0
    slots: int = job.DEFAULT_SLOTS
    port: int = 0
    timeout_s: float = 300.0
    silence_s: float = 30.0
    heartbeat_s: float = 1.0
    relaunches: int = 5
    recovery: str = "exact"
    tries: int = 3
    stragglers: tuple[str, ...] = ()
    guards: bool = True
    data_workers: str = "auto"
    data_worker_cpu: float | None = None
    poison: str = "fail"
    plan: bool | None = None
    quota: float | None = None
    planning: tuple[str, ...] = ()
    brain: str = ""
    history: str | None = None
    grace_s: float = 30.0
    checkpoint_every_s: float | None = None
    checkpoint_dir: str = ""
    checkpoint_url: str = ""
    upload_every_s: float = keeping.UPLOAD_EVERY_S
    mirror: bool = False
    resume: str = ""
    following: streams.OnlineOptions = field(default_factory=streams.OnlineOptions)
    exporting: ExportOptions = field(default_factory=ExportOptions)
    as_json: bool = False
    debug: bool = False


def run(options: RunOptions) -> int:
    """Run a job to its end; the exit code."""
    status, files = execute(options)
    code = outcome.exit_code(status)
    print(outcome.text(status, files, debug=options.debug))
    if options.as_json:
        print(msgspec.json.encode(outcome.as_object(status, files)).decode())
    return code


def rule_of(text: str) -> tuple[str, float]:
    """NAME=VALUE of a rule about stragglers."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise errors.BadInput(f"--straggler {text}: wanted NAME=VALUE, such as window=20") from None


Witness = Callable[[messages.JobStatus, logs.RunFiles, Callable[[str], None]], None]


def execute(options: RunOptions, witness: Witness | None = None) -> tuple[messages.JobStatus, logs.RunFiles]:
    """Run a job to its end; how it ended, and where its files are. A witness sees every status, and may speak."""
    script = find_script(options.script)
    limits = limits_of(options)
    name = options.name or name_of(script)
    sizes = size_of(options, script, name, limits)
    resumed = keeping.find_checkpoint(options.resume)
    spec = job.JobSpec(
        name=name, servers=sizes.servers, workers=sizes.workers, sync=sync_mode(options.sync),
        slots=resumed.slots if resumed else options.slots, seed=resumed.seed if resumed else options.seed,
        join_s=options.timeout_s, silence_s=options.silence_s,
        heartbeat_s=options.heartbeat_s, relaunches=options.relaunches, tries=options.tries,
        recovery=recovery_of(options.recovery),
        checkpoints=keeping.rules(
            every_s=options.checkpoint_every_s, folder=options.checkpoint_dir, url=options.checkpoint_url,
            upload_every_s=options.upload_every_s, resume=options.resume, resumed=resumed,
            mirror=options.mirror, servers=sizes.servers,
        ),
        cache=caching.rules(options.cache, allocation=options.allocation, staleness=options.cache_staleness),
        stragglers=StragglerRules().changed(dict(rule_of(text) for text in options.stragglers)),
        guards=guard_rules(options, sizes),
        feeding=feeding.rules(
            options.data_workers, cpu=options.data_worker_cpu, poison=options.poison, quota=options.quota, cores=cores()
        ),
        online=streams.job_of(
            options.following, workers=options.workers, servers=options.servers, cores=cores(), resume=options.resume
        ),
        worker_cpu=sizes.worker_cpu, server_cpu=sizes.server_cpu,
        worker_memory=limits.memory, server_memory=limits.memory, planning=sizes.planning,
    )  # fmt: skip
    files = logs.make_run(pathlib.Path(options.logs), name)
    plan = RunPlan(
        spec=spec, script=str(script),
        arguments=options.arguments, threads_per_worker=sizes.threads, port=options.port,
        grace_s=options.grace_s, debug=options.debug,
    )  # fmt: skip
    exporter = exporter_of(options, spec, files)
    return asyncio.run(_run(plan, files, witness, exporter)), files


async def _run(
    plan: RunPlan, files: logs.RunFiles, witness: Witness | None, exporter: Exporter | None
) -> messages.JobStatus:
    shown = view.open_view(plan, files)
    platform = LocalPlatform(files, shown.say)
    agent = Agent(plan, files, platform, shown.say)
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupted(name: str) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            shown.say(f"{name}: draining, workers finish the batch in hand; once more kills")
            agent.stop(f"stopped by {name}")
        else:
            shown.say(f"{name} again: killing")
            agent.kill()

    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")):
        loop.add_signal_handler(number, interrupted, name)

    def seen(status: messages.JobStatus) -> None:
        shown.update(status)
        if witness:
            witness(status, files, shown.say)

    with shown:
        if exporter is not None:
            exporter.begin()
        try:
            return await agent.run(seen)
        finally:
            if exporter is not None:
                await exporter.end()


def exporter_of(options: RunOptions, spec: job.JobSpec, files: logs.RunFiles) -> Exporter | None:
    """Who exports the model while it trains, if that is wished."""
    asked = options.exporting
    if not asked.export_to:
        return None
    every_s = streams.seconds("--export-every", asked.export_every)
    return Exporter(files, spec.checkpoints, asked.export_to, every_s=every_s)


def size_of(options: RunOptions, script: pathlib.Path, name: str, limits: resources.Limits) -> sizing.Start:
    """What the job begins with; where its size is open, also how it plans."""
    fixed = own_machine.Fixed(
        workers=options.workers, servers=options.servers, cpu=limits.cpu, memory=limits.memory, quota=options.quota
    )
    beside = pathlib.Path(options.logs).absolute().parent / "history.db"
    asked = sizing.Asked(
        script=script, arguments=options.arguments, name=name, fixed=fixed, sync=sync_mode(options.sync),
        plan=options.plan, settings=options.planning, brain=options.brain,
        history=str(beside) if options.history is None else options.history,
    )  # fmt: skip
    return sizing.start(asked, cores=cores(), say=lambda line: print(line, file=sys.stderr))


def guard_rules(options: RunOptions, sizes: sizing.Start) -> GuardRules:
    """A hot server gets no more cores than a plan could give it."""
    rules, bounds = GuardRules(memory=options.guards, servers=options.guards), sizes.planning.bounds
    return replace(rules, most_cpu=bounds.most.server_cpu) if bounds is not None else rules


def limits_of(options: RunOptions) -> resources.Limits:
    """What each worker and server may take, checked before anything starts."""
    memory = None if options.memory is None else resources.parse_memory(options.memory)
    limits = resources.Limits(cpu=options.cpu, memory=memory)
    if limits.cpu is not None and limits.cpu > cores():
        raise errors.BadInput(f"--cpu {limits.cpu:g}: this machine has {cores()} cores; give that or less, or none")
    return limits


def find_script(path: str) -> pathlib.Path:
    """The script, or an error with the nearest name in that folder."""
    script = pathlib.Path(path)
    if script.is_file():
        return script
    if script.is_dir():
        raise errors.MissingFile(
            f"{path} is a directory; give the training script in it, such as {script / 'train.py'}"
        )
    folder = script.parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = difflib.get_close_matches(script.name, names, n=1)
    hint = f" Did you mean {folder / near[0]}?" if near else f" Nothing in {folder.absolute()} has a name like it."
    raise errors.MissingFile(f"no script {path}.{hint}")


def name_of(script: pathlib.Path) -> str:
    """A job name made from the script's."""
    name = re.sub(r"[^a-z0-9._-]+", "-", script.stem.lower()).strip("._-")[:63].strip("._-")
    return name or "job"


def recovery_of(text: str) -> job.Recovery:
    """What the loss of a server means."""
    for known in job.RECOVERIES:
        if text == known:
            return known
    raise errors.UnknownName("recovery", text, job.RECOVERIES)


def sync_mode(text: str) -> job.SyncMode:
    """The mode of that name."""
    for mode in job.SYNC_MODES:
        if mode == text:
            return mode
    raise errors.UnknownName("sync mode", text, job.SYNC_MODES)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
