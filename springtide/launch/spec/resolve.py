"""Resolves a job spec into a `RunPlan`: fills in open fields and checks everything. Writes no files and starts no
process.

In: an `ElasticJob` and the `PlatformCapacity` of its platform. Used by `springtide run`, `submit`, a pod's agent and
Ray. Next: `platforms.agent.agent`.
"""

import difflib
import math
import pathlib
import re
import time
from collections.abc import Callable
from dataclasses import fields, replace

from springtide import errors
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import open_store
from springtide.domain.core import validation
from springtide.domain.data import data_workers
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model import cache_rules
from springtide.domain.model.checkpoints import EVERY_S, CheckpointRules
from springtide.domain.plan import capacity as capacities
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob, gpu_of
from springtide.domain.spec.job_spec import GuardRules, JobSpec, Patience, StragglerRules
from springtide.domain.spec.online_job import OnlineJob, OnlineRules
from springtide.domain.spec.tracker_target import TrackingRules
from springtide.launch.spec import field_overrides, initial_resources
from springtide.platforms.agent.run_plan import RunPlan
from springtide.telemetry import trackers
from springtide.telemetry.logs import RunFiles

SAME = ("name", "sync", "relaunches", "recovery")
"""Fields of an `ElasticJob` that a `JobSpec` has under the same name."""
SETTINGS = ("speedup", "every_s", "forecaster", "history")
RULES = ("pause_s", "start_s", "lag_price", "late_price", "change_price")

Say = Callable[[str], None]


def online_of(job: ElasticJob, *, cores: int, on_gpus: int | None = None) -> OnlineJob:
    following, workers = job.following, job.workers
    fewest = workers.min or 1
    most = workers.max if workers.max is not None else max(cores, fewest)
    most = most if on_gpus is None else min(most, on_gpus)
    rules = OnlineRules(fewest=fewest, most=most, slo_lag_s=validation.parse_duration("slo_lag", following.slo_lag))
    found = OnlineJob(
        on=following.on and workers.count is None,
        rules=rules,
        metrics_port=following.metrics_port,
        servers_follow=job.servers.count is None and job.servers.max is None,
        history=past_traffic(job.origin),
    )
    found, rules = field_overrides.changed(
        following.settings, (found, SETTINGS), (rules, RULES), option="--online-setting"
    )
    if found.history and not pathlib.Path(found.history).is_file():
        raise errors.MissingFile(
            f"following.settings (--online-setting) history={found.history}: no such file; expected traffic.jsonl of "
            "another run"
        )
    made: OnlineJob = replace(found, rules=rules)
    return made


def past_traffic(resume: str) -> str:
    path = RunFiles(pathlib.Path(resume)).traffic if resume and "://" not in resume else None
    return str(path.absolute()) if path is not None and path.is_file() else ""


def checkpoints_of(job: ElasticJob, servers: int, resumed: Manifest | None) -> CheckpointRules:
    keeping, exports = job.checkpoints, job.following.export_every
    rules = checkpoint_rules(keeping, servers, resume=job.origin, resumed=resumed, exports=exports)
    return replace(rules, new_data=bool(job.continue_from))


def checkpoint_rules(
    keeping: CheckpointWish, servers: int = 1, *, resume: str = "", resumed: Manifest | None = None, exports: str = ""
) -> CheckpointRules:
    """Build the checkpoint rules. If the job exports, checkpoints are at least as frequent as exports."""
    every_s, url = keeping.every_s, keeping.url
    often_s = validation.parse_duration("export_every", exports) if exports else EVERY_S
    if every_s is not None and exports and often_s < every_s:
        raise errors.BadInput(
            f"following.exportEvery {exports} (--export-every) with checkpoints every {every_s:g} s, which exports are "
            f"made of: leave out checkpoints.everyS (--checkpoint-every), or give {often_s:g} or less"
        )
    if url and every_s == 0:
        raise errors.BadInput(
            "checkpoints.url (--checkpoint-url) without checkpoints: leave out everyS 0 (--checkpoint-every 0)"
        )
    if keeping.mirror and every_s == 0:
        raise errors.BadInput(
            "checkpoints.mirror (--mirror) without checkpoints: leave out everyS 0 (--checkpoint-every 0)"
        )
    if keeping.mirror and servers < 2:
        raise errors.BadInput(
            "checkpoints.mirror (--mirror) with one server: no other server could keep a copy; ask for 2 servers or "
            "more"
        )
    if keeping.folder and pathlib.Path(keeping.folder).is_file():
        raise errors.BadInput(f"checkpoints.folder (--checkpoint-dir) {keeping.folder} is a file; expected a folder")
    if url and "://" not in url:
        url = f"file://{absolute(url)}"
    return CheckpointRules(
        every_s=min(EVERY_S, often_s) if every_s is None else every_s,
        folder=str(pathlib.Path(keeping.folder).absolute()) if keeping.folder else "",
        resume=absolute(open_store(resume).where) if resumed else "",
        resume_number=resumed.number if resumed else 0,
        resume_run=resumed.run if resumed else "",
        numbers_after=newest_number(resume) if resumed else 0,
        url=url.rstrip("/"),
        upload_every_s=keeping.upload_every_s,
        mirror=keeping.mirror,
    )


def absolute(where: str) -> str:
    return where if "://" in where else str(pathlib.Path(where).absolute())


def newest_number(where: str) -> int:
    from springtide.checkpoint.format import checkpoint_io  # imported here, because it loads numpy and the C++ core

    return max(checkpoint_io.numbers(open_store(where)))


def find_checkpoint(where: str, say: Callable[[str], None]) -> Manifest | None:
    if not where:
        return None
    from springtide.checkpoint.format import checkpoint_io

    found = checkpoint_io.latest(where)
    for trouble in found.troubles:
        say(trouble)
    if found.manifest is None:
        raise errors.MissingFile(f"{where}: no usable checkpoint there; give a run's name, its folder or a URL")
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.manifest.begun_at))
    summary = f"job {found.manifest.job}, {made}, {found.manifest.progress.samples:,} samples trained"
    say(f"continuing from checkpoint {found.manifest.number} in {found.place.where} ({summary})")
    return found.manifest


def resolve(
    job: ElasticJob,
    capacity: PlatformCapacity,
    *,
    code: pathlib.Path | None,
    history: str = "",
    key: str = "",
    say: Say = lambda _: None,
) -> RunPlan:
    """Resolve a spec: return everything that an agent needs to run the job.

    `code` is the folder of the script; None if only the hosts of the job have the script. `history` is the database of
    past jobs, if the job names none. `key` is the brain's name for the job. When the same job is resolved again, pass
    the same key. `say` gets messages for the user.
    """
    if code is not None:
        find_script(code / job.script)
    job = job if job.name else replace(job, name=name_of(job.script))
    check_exports(job, elsewhere=not capacity.own)
    trackers.check_packages(job.log_to)
    sizes = initial_resources.start(job, capacity, history=history, key=key, say=say)
    resumed = find_checkpoint(job.origin, say)
    cores = max(1, math.floor(job.quota.cpu or capacity.cpu or 1))
    spec = JobSpec(
        **{name: getattr(job, name) for name in SAME},
        **{field.name: getattr(job.patience, field.name) for field in fields(Patience)},
        servers=sizes.servers,
        workers=sizes.workers,
        worker_cpu=sizes.worker_cpu,
        server_cpu=sizes.server_cpu,
        worker_memory=job.workers.memory_bytes,
        server_memory=job.servers.memory_bytes,
        worker_gpu=gpu_of(job.workers, job.quota),
        gpus=capacity.gpus if job.quota.gpu is None and capacity.own else job.quota.gpu,
        planning=sizes.planning,
        slots=resumed.slots if resumed else job.slots,
        seed=resumed.seed if resumed else job.seed,
        checkpoints=checkpoints_of(job, sizes.servers, resumed),
        cache=cache_rules.rules(job.cache, allocation=job.allocation or None, staleness=job.cache_staleness),
        stragglers=straggler_rules(job),
        guards=GuardRules(memory=job.guards, servers=job.guards),
        feeding=feeds(job, capacity),
        tracking=TrackingRules(log_to=job.log_to, resumed=absolute(job.resume) if job.resume else ""),
        online=online_of(job, cores=cores, on_gpus=capacities.gpu_workers(capacity, job.workers, job.quota)),
    )
    tell_shared_gpus(spec, say)
    if job.following.export_to and not spec.checkpoints.on:
        raise errors.BadInput(
            "following.exportTo (--export-to) needs checkpoints, which exports are made of; leave out everyS 0 "
            "(--checkpoint-every 0)"
        )
    return RunPlan(
        spec=spec,
        script=job.script,
        arguments=job.arguments,
        threads_per_worker=sizes.threads,
        grace_s=job.patience.grace_s,
        environment=job.environment,
        settings=schema.settings_of(job),
    )


def tell_shared_gpus(spec: JobSpec, say: Say) -> None:
    if spec.worker_gpu is None and spec.gpus and spec.workers > spec.gpus:
        own = "one GPU" if spec.gpus == 1 else f"{spec.gpus} GPUs"
        say(f"{spec.workers} workers share {own}; --gpus {spec.gpus} gives each worker its own, --gpus 0 gives none")


def check_exports(job: ElasticJob, *, elsewhere: bool) -> None:
    if job.following.export_to and elsewhere:
        raise errors.BadInput(
            "following.exportTo: on clusters, no process exports beside the job; leave it out, set checkpoints.url, "
            "and run `springtide export CHECKPOINTS_URL EXPORTS_URL --every 5m` on any machine"
        )


def feeds(job: ElasticJob, capacity: PlatformCapacity) -> FeedRules:
    cpu, node = job.data_worker_cpu, capacity.node_cpu
    if cpu is not None and 0 < node < cpu:
        raise errors.BadInput(
            f"dataWorkerCpu {cpu:g} (--data-worker-cpu): {capacity.machine_text} has {node:g} cores; give that or less"
        )
    cores = job.quota.cpu or capacity.cpu or None
    return FeedRules(
        workers=data_workers.number_of(job.data_workers), cpu=cpu, poison=job.poison, cores=cores, split=job.split
    )


def straggler_rules(job: ElasticJob) -> StragglerRules:
    names = [field.name for field in fields(StragglerRules)]
    rules: StragglerRules
    (rules,) = field_overrides.changed(job.stragglers, (StragglerRules(), names), option="--straggler")
    return rules


def find_script(script: pathlib.Path) -> pathlib.Path:
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
    hint = f" Did you mean {folder / near[0]}?" if near else f" No run in {folder.absolute()} has a similar name."
    raise errors.MissingFile(f"no script {script}.{hint}")


def name_of(script: str | pathlib.Path) -> str:
    stem = pathlib.PurePath(script).stem.lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:63].strip("._-")
    return name or "job"
