"""`springtide run`: a job on this machine, while one looks on.

In: the options of the command line, made into an `ElasticJob`. Out: a live view on standard error, the outcome on
standard output (its first line is the user's error if there was one), an exit code. Next: `launch.local_job` runs the
job, `cli.show.live_view` shows it.
"""

import asyncio
import pathlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from springtide import errors
from springtide.cli.common import exit_status
from springtide.cli.common.options import ExportOptions, FeedingOptions, OnlineOptions, online_is_on
from springtide.cli.common.render import wrap
from springtide.cli.show import live_view
from springtide.domain.data import data_workers
from springtide.domain.model.checkpoints import UPLOAD_EVERY_S
from springtide.domain.spec import job_spec
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob, FollowingWish, PatienceWish, Quota, RoleWish
from springtide.launch import local_job
from springtide.launch.spec import resolve
from springtide.platforms.local import job_handle
from springtide.rpc.messages import messages
from springtide.telemetry import logs, output, redactor


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
    slots: int = job_spec.DEFAULT_SLOTS
    port: int = 0
    tls: bool = False
    timeout_s: float = 300.0
    silence_s: float = 30.0
    heartbeat_s: float = 1.0
    relaunches: int = 5
    recovery: str = "exact"
    tries: int = 3
    stragglers: tuple[str, ...] = ()
    guards: bool = True
    feeding: FeedingOptions = field(default_factory=FeedingOptions)
    plan: bool | None = None
    quota: float | None = None
    planning: tuple[str, ...] = ()
    brain: str = ""
    history: str | None = None
    grace_s: float = 30.0
    disk_s: float = 600.0
    checkpoint_every_s: float | None = None
    checkpoint_dir: str = ""
    checkpoint_url: str = ""
    upload_every_s: float = UPLOAD_EVERY_S
    mirror: bool = False
    resume: str = ""
    following: OnlineOptions = field(default_factory=OnlineOptions)
    exporting: ExportOptions = field(default_factory=ExportOptions)
    as_json: bool = False
    debug: bool = False


def run(options: RunOptions) -> int:
    status, files = execute(options)
    code = exit_status.exit_code(status)
    places = job_handle.places_of(files)
    print(exit_status.text(exit_status.called(status, files.root.name), places, debug=options.debug))
    if options.as_json:
        print(msgspec.json.encode(exit_status.as_object(status, places)).decode())
    return code


def rule_of(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise errors.BadInput(f"--straggler {text}: wanted NAME=VALUE, such as window=20") from None


Witness = Callable[[messages.JobStatus, logs.RunFiles, Callable[[str], None]], None]


def execute(options: RunOptions, witness: Witness | None = None) -> tuple[messages.JobStatus, logs.RunFiles]:
    """Run a job to its end; call `witness` with every status."""
    output.keep_going()  # a job must outlive whoever reads what it prints
    begun = local_job.begin(job_of(options), pathlib.Path(options.logs), code=pathlib.Path(), say=said)
    begun = replace(begun, plan=replace(begun.plan, port=options.port, debug=options.debug, tls=options.tls))
    return asyncio.run(_run(begun, witness)), begun.files


async def _run(begun: local_job.PreparedRun, witness: Witness | None) -> messages.JobStatus:
    shown = live_view.open_view(begun.plan, begun.files)

    def seen(status: messages.JobStatus) -> None:
        shown.update(exit_status.called(status, begun.files.root.name))
        if witness:
            witness(status, begun.files, shown.say)

    with shown:
        return await local_job.attend(begun, say=shown.say, seen=seen)


def said(line: str) -> None:
    print("\n".join(wrap(redactor.redact(line))), file=sys.stderr)


def job_of(options: RunOptions) -> ElasticJob:
    asked, exports = options.following, options.exporting
    bounds = {"min": asked.min_workers if asked.min_workers > 1 else None, "max": asked.max_workers}
    number = "start" if options.workers is not None and set(bounds.values()) != {None} else "count"
    return ElasticJob(
        name=options.name or resolve.name_of(options.script), script=options.script, arguments=options.arguments,
        workers=RoleWish(**{number: options.workers}, **bounds, cpu=options.cpu, memory=options.memory),
        servers=RoleWish(count=options.servers, cpu=options.cpu, memory=options.memory),
        data_workers=options.feeding.data_workers, data_worker_cpu=options.feeding.data_worker_cpu,
        split=data_workers.split_of(options.feeding.split), poison=data_workers.poison_of(options.feeding.poison),
        quota=Quota(cpu=options.quota), sync=sync_mode(options.sync),
        cache=options.cache, cache_staleness=options.cache_staleness, allocation=options.allocation or "",
        seed=options.seed, slots=options.slots, recovery=recovery_of(options.recovery), relaunches=options.relaunches,
        patience=PatienceWish(
            join_s=options.timeout_s, silence_s=options.silence_s, heartbeat_s=options.heartbeat_s,
            grace_s=options.grace_s, disk_s=options.disk_s, tries=options.tries,
        ),
        guards=options.guards, stragglers=dict(rule_of(text) for text in options.stragglers), plan=options.plan,
        planning=pairs("--planning", options.planning, "sample_s=20"), brain=options.brain, history=options.history,
        checkpoints=CheckpointWish(
            every_s=options.checkpoint_every_s, folder=options.checkpoint_dir, url=options.checkpoint_url,
            upload_every_s=options.upload_every_s, mirror=options.mirror,
        ),
        resume=resumed_from(options.resume, options.logs),
        following=FollowingWish(
            on=online_is_on(asked), slo_lag=asked.slo_lag, metrics_port=asked.metrics_port,
            settings=pairs("--online-setting", asked.online_setting or (), "every=30"),
            export_to=exports.export_to, export_every=exports.export_every,
        ),
    )  # fmt: skip


def resumed_from(named: str, runs: str) -> str:
    """Resolve --resume: a run's name becomes its folder, a path or URL stays as it is."""
    run = pathlib.Path(runs, named)
    plain = pathlib.Path(named).name == named and not pathlib.Path(named).exists()
    return str(run) if named and plain and run.is_dir() else named


def pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise errors.BadInput(f"{option} {text}: wanted NAME=VALUE, such as {example}")
        found[name] = value
    return found


def recovery_of(text: str) -> job_spec.Recovery:
    for known in job_spec.RECOVERIES:
        if text == known:
            return known
    raise errors.UnknownName("recovery", text, job_spec.RECOVERIES)


def sync_mode(text: str) -> job_spec.SyncMode:
    for mode in job_spec.SYNC_MODES:
        if mode == text:
            return mode
    raise errors.UnknownName("sync mode", text, job_spec.SYNC_MODES)
