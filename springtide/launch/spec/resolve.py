"""From a job as its user wrote it down to one that can run: all that was left open is filled in, and all is checked.

In: an `ElasticJob` and the `PlatformCapacity` of its platform. Out: a `RunPlan`; nothing is written or started before
it is there. For every way to a job: `springtide run`, `submit`, a pod's agent, a Ray cluster. Next:
`platforms.agent.agent`.
"""

import difflib
import math
import pathlib
import re
from collections.abc import Callable
from dataclasses import replace

from springtide import errors
from springtide.domain.data import data_workers
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model import cache_rules
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec import script_settings
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.guard_rules import GuardRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.straggler_rules import StragglerRules
from springtide.launch.spec import checkpoint_options, initial_resources, stream_options
from springtide.platforms.agent.agent import RunPlan

Say = Callable[[str], None]


def resolve(
    job: ElasticJob, capacity: PlatformCapacity, *, code: pathlib.Path | None, history: str = "", key: str = "",
    say: Say = lambda _: None,
) -> RunPlan:  # fmt: skip
    """All that an agent must know.

    `code` is the folder in which the script is looked for, as seen from here; None: only its hosts have it. `history`
    of past jobs is the platform's own, unless the job names one. A brain knows the job by `key`; whoever
    resolves a job again gives the same, else a new one is drawn. `say` gets what the user should know.
    """
    if code is not None:
        find_script(code / job.script)
    job = job if job.name else replace(job, name=name_of(job.script))
    check_exports(job, elsewhere=not capacity.own)
    sizes = initial_resources.start(job, capacity, history=history, key=key, say=say)
    resumed = checkpoint_options.find_checkpoint(job.resume, say)
    cores = max(1, math.floor(job.quota.cpu or capacity.cpu or 1))
    spec = JobSpec(
        name=job.name, servers=sizes.servers, workers=sizes.workers, sync=job.sync,
        slots=resumed.slots if resumed else job.slots, seed=resumed.seed if resumed else job.seed,
        join_s=job.patience.join_s, silence_s=job.patience.silence_s, heartbeat_s=job.patience.heartbeat_s,
        relaunches=job.relaunches, tries=job.patience.tries, disk_s=job.patience.disk_s, recovery=job.recovery,
        checkpoints=checkpoint_options.rules(
            job.checkpoints, servers=sizes.servers, resume=job.resume, resumed=resumed,
            exports=job.following.export_every,
        ),
        cache=cache_rules.rules(job.cache, allocation=job.allocation or None, staleness=job.cache_staleness),
        stragglers=StragglerRules().changed(job.stragglers), guards=guards(job, sizes),
        feeding=feeds(job, capacity), online=stream_options.online_of(job, cores=cores),
        worker_cpu=sizes.worker_cpu, server_cpu=sizes.server_cpu,
        worker_memory=job.workers.memory_bytes, server_memory=job.servers.memory_bytes, planning=sizes.planning,
    )  # fmt: skip
    if job.following.export_to and not spec.checkpoints.on:
        raise errors.BadInput(
            "following.exportTo (--export-to) needs checkpoints, which exports are made of; leave out everyS 0 "
            "(--checkpoint-every 0)"
        )
    return RunPlan(
        spec=spec, script=job.script, arguments=job.arguments, threads_per_worker=sizes.threads,
        grace_s=job.patience.grace_s, environment=job.environment, settings=script_settings.told(job),
    )  # fmt: skip


def check_exports(job: ElasticJob, *, elsewhere: bool) -> None:
    """Exports are made beside the agent of this machine; elsewhere by a command of their own."""
    if job.following.export_to and elsewhere:
        raise errors.BadInput(
            "following.exportTo: on clusters nobody exports beside the job; leave it out, give checkpoints.url, and "
            "run `springtide export CHECKPOINTS_URL EXPORTS_URL --every 5m` wherever you like"
        )


def feeds(job: ElasticJob, capacity: PlatformCapacity) -> FeedRules:
    """What it may do about data workers."""
    cpu, node = job.data_worker_cpu, capacity.node_cpu
    if cpu is not None and 0 < node < cpu:
        raise errors.BadInput(
            f"dataWorkerCpu {cpu:g} (--data-worker-cpu): {capacity.words} has {node:g} cores; give that or less"
        )
    cores = job.quota.cpu or capacity.cpu or None
    return FeedRules(
        workers=data_workers.number_of(job.data_workers), cpu=cpu, poison=job.poison, cores=cores, split=job.split
    )


def guards(job: ElasticJob, sizes: initial_resources.InitialSizes) -> GuardRules:
    """A hot server gets no more cores than a plan could give it."""
    rules, bounds = GuardRules(memory=job.guards, servers=job.guards), sizes.planning.bounds
    return replace(rules, most_cpu=bounds.most.server_cpu) if bounds is not None else rules


def find_script(script: pathlib.Path) -> pathlib.Path:
    """The script, or an error with the nearest name in that folder."""
    if script.is_file() and script.suffix in (".yaml", ".yml"):
        raise errors.BadInput(f"{script} is a spec, not a training script; run it with: springtide submit {script}")
    if script.is_file():
        return script
    if script.is_dir():
        raise errors.MissingFile(
            f"{script} is a directory; give the training script in it, such as {script / 'train.py'}"
        )
    folder = script.parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = difflib.get_close_matches(script.name, names, n=1)
    hint = f" Did you mean {folder / near[0]}?" if near else f" Nothing in {folder.absolute()} has a name like it."
    raise errors.MissingFile(f"no script {script}.{hint}")


def name_of(script: str | pathlib.Path) -> str:
    """A job name made from the script's."""
    stem = pathlib.PurePath(script).stem.lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:63].strip("._-")
    return name or "job"
