"""`springtide run`: a job on this machine, while one looks on.

In: the options of the command line, made into an `ElasticJob`. Out: a live view on standard error, the outcome on
standard output (its first line is the user's error if there was one), an exit code. Next: `launch.local_job` runs the
job, `cli.show.live_view` shows it.
"""

import asyncio
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace

import msgspec

from springtide import errors
from springtide.cli.common import exit_status
from springtide.cli.common.options import RunOptions
from springtide.cli.common.render import wrap
from springtide.cli.show import live_view
from springtide.domain.data import data_workers
from springtide.domain.spec import job_spec
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob, FollowingWish, PatienceWish, Quota, RoleWish
from springtide.launch import local_job
from springtide.launch.spec import resolve
from springtide.platforms.local import job_handle
from springtide.rpc.messages import messages
from springtide.telemetry import logs, output, redactor


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
    sizes, patience, keeping, online = options.sizes, options.patience, options.keeping, options.following
    bounds = {"min": online.min_workers if online.min_workers > 1 else None, "max": online.max_workers}
    number = "start" if sizes.workers is not None and set(bounds.values()) != {None} else "count"
    training = asdict(options.training)
    checked("sync mode", training["sync"], job_spec.SYNC_MODES)
    checked("recovery", training["recovery"], job_spec.RECOVERIES)
    checked("split", options.feeding.split, data_workers.SPLITS)
    checked("policy", options.feeding.poison, data_workers.POISONS)
    return ElasticJob(
        name=options.name or resolve.name_of(options.script),
        script=options.script,
        arguments=tuple(options.arguments or ()),
        workers=RoleWish(**{number: sizes.workers}, **bounds, cpu=sizes.cpu, memory=sizes.memory),
        servers=RoleWish(count=sizes.servers, cpu=sizes.cpu, memory=sizes.memory),
        **asdict(options.feeding),
        quota=Quota(cpu=sizes.quota),
        **training,
        patience=PatienceWish(
            join_s=patience.timeout,
            silence_s=patience.silence,
            heartbeat_s=patience.heartbeat,
            grace_s=patience.grace,
            disk_s=keeping.disk_wait,
            tries=patience.tries,
        ),
        stragglers=dict(rule_of(text) for text in patience.straggler or ()),
        plan=sizes.plan,
        planning=pairs("--planning", sizes.planning or (), "sample_s=20"),
        brain=sizes.brain,
        history=sizes.history,
        checkpoints=CheckpointWish(
            every_s=keeping.checkpoint_every,
            folder=keeping.checkpoint_dir,
            url=keeping.checkpoint_url,
            upload_every_s=keeping.upload_every,
            mirror=keeping.mirror,
        ),
        resume=resumed_from(keeping.resume, options.logs),
        following=FollowingWish(
            on=checked("mode of --online", online.online, ("auto", "off")) == "auto",
            slo_lag=online.slo_lag,
            metrics_port=online.metrics_port,
            settings=pairs("--online-setting", online.online_setting or (), "every=30"),
            **asdict(options.exporting),
        ),
    )


def checked(kind: str, name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise errors.UnknownName(kind, name, known)
    return name


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
