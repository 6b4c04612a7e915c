"""Chooses the initial resources that the user of a job left open, and the job's planning rules.

If a brain or a history has similar jobs, it supplies the first shape. Next: `launch.spec.resolve`.
"""

import getpass
import math
import pathlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from springtide import config, errors
from springtide.domain.core import resources
from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.plan import capacity as capacities
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.plan.plan import Advice
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import JobView
from springtide.domain.spec.elastic_job import ElasticJob, RoleWish
from springtide.domain.spec.planning_config import (
    AdviserRules,
    PlanningConfig,
    PlanningIdentity,
    PlanningStage,
    PlanRules,
)
from springtide.launch.spec import field_overrides
from springtide.planning.policy import acceptance
from springtide.telemetry import output

# seconds; shorter than on a cluster, because roles start within seconds on one machine, and within a minute on a
# cluster
SAMPLE_S = BETWEEN_S = 20.0
ASK_S = 10.0  # seconds to wait for a first shape; without a reply, the job starts with few resources
TIMES = ("every_s", "patience_s", "settle_s", "window_s", "warm_up_steps")
BOUNDS = ("worker_step", "server_step", "cpu_step")
UNKNOWN = ModelFacts(dense_bytes=1.0, bandwidth=1.0, dim=1.0, batch=1)
Say = Callable[[str], None]


class InitialSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Initial sizes of a job, with its planning rules."""

    workers: int
    servers: int
    worker_cpu: float | None
    server_cpu: float | None
    threads: int
    planning: PlanRules


def start(job: ElasticJob, capacity: PlatformCapacity, *, history: str = "", key: str = "", say: Say) -> InitialSizes:
    """Return first sizes and planning rules. `history` is the database of past jobs, if the job names none."""
    capacities.check(capacity, job.workers, job.servers, job.quota)
    limits = capacities.bounds(capacity, job.workers, job.servers, job.quota)
    if not planned(job):
        if job.planning:  # report wrong overrides before the job starts
            changed(PlanRules(bounds=limits, resize=capacity.holds), job.planning)
            say(f"the size of this job is fixed, so these planning settings have no effect: {', '.join(job.planning)}")
        return fixed(job, capacity)
    if job.history:
        from springtide.brain.store import store

        store.parse(job.history)  # report a wrong URL before the job starts
    if capacity.trouble:
        say(f"cores cannot be limited here ({capacity.trouble}): only the numbers of workers and servers are planned")
    rules = rules_of(job, capacity, limits, history=history if job.history is None else job.history, key=key)
    assert rules.bounds is not None
    begin = {"workers": job.workers.start, "servers": job.servers.start}
    small = capacities.first_shape(rules.bounds, **begin, small=not capacity.own)
    shape, rules = warm(job, small, rules)
    held = capacity.holds
    return InitialSizes(
        workers=shape.workers,
        servers=shape.servers,
        threads=math.ceil(limits.most.worker_cpu),
        planning=rules,
        worker_cpu=shape.worker_cpu if held else job.workers.cpu,
        server_cpu=shape.server_cpu if held else job.servers.cpu,
    )


def planned(job: ElasticJob) -> bool:
    """Return True if the master plans the job: the user asks for planning, or the job is async and leaves some number
    open."""
    open_numbers = job.workers.count is None or job.servers.count is None
    return job.plan if job.plan is not None else open_numbers and job.sync == "async"


def fixed(job: ElasticJob, capacity: PlatformCapacity) -> InitialSizes:
    cores = max(1, math.floor(capacity.node_cpu or capacity.cpu or 1))
    usual = resources.size_locally(cores, servers=job.servers.count, workers=job.workers.count, cpu=job.workers.cpu)
    on_gpus = capacities.gpu_workers(capacity, job.workers, job.quota) or usual.workers
    count = on_gpus if capacity.own or job.quota.gpu is not None else min(on_gpus, usual.workers)
    workers, servers = within(count, job.workers), within(usual.servers, job.servers)
    worker_cpu, server_cpu = job.workers.cpu, job.servers.cpu
    if job.quota.cpu is not None or job.quota.memory is not None:
        numbers = replace(job.workers, count=workers, min=None, max=None, start=None)
        servers_too = replace(job.servers, count=servers, min=None, max=None, start=None)
        shape = capacities.first_shape(capacities.bounds(capacity, numbers, servers_too, job.quota))
        if capacity.holds:
            worker_cpu, server_cpu = shape.worker_cpu, shape.server_cpu
    threads = usual.threads_per_worker if worker_cpu is None else max(1, math.ceil(worker_cpu))
    return InitialSizes(
        workers=workers,
        servers=servers,
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        threads=min(usual.threads_per_worker, threads),
        planning=PlanRules(),
    )


def within(usual: int, wish: RoleWish) -> int:
    return wish.count or wish.start or min(max(usual, wish.min or 1), wish.max or max(usual, wish.min or 1))


def rules_of(
    job: ElasticJob, capacity: PlatformCapacity, limits: ShapeBounds, *, history: str, key: str = ""
) -> PlanRules:
    own = PlanningConfig(
        total_cpu=limits.quota.cpu,
        node_cpu=max(limits.most.worker_cpu, limits.most.server_cpu),
        server_cpu=limits.most.server_cpu,
    )
    if capacity.own:
        own = replace(own, sample_s=SAMPLE_S, between_changes_s=BETWEEN_S, workers_stay=capacity.holds)
    own_settings = config.load()
    brain = job.brain or own_settings.brain
    rules = PlanRules(
        bounds=limits,
        resize=capacity.holds,
        overlap=capacity.own and job.quota.cpu is None and not brain,
        config=own,
        adviser=AdviserRules(
            brain=brain,
            secret_file=own_settings.brain_secret_file,
            tls=own_settings.brain_tls,
            history=history,
            key=key or uuid.uuid4().hex,
        ),
        identity=PlanningIdentity(
            user=user(),
            priority=job.priority,
            features={
                "script": pathlib.PurePath(job.script).name,
                "job": job.name,
                "arguments": " ".join(output.redact_arguments(job.arguments)),
            },
        ),
    )
    return changed(rules, job.planning)


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def changed(rules: PlanRules, given: Mapping[str, str]) -> PlanRules:
    config, others, bounds = field_overrides.changed(
        given, (rules.config, field_overrides.planning_fields(policy=True)), (rules, TIMES), (rules.bounds, BOUNDS)
    )
    has_history: PlanRules = replace(others, config=config, bounds=bounds)
    return has_history


def warm(job: ElasticJob, small: Shape, rules: PlanRules) -> tuple[Shape, PlanRules]:
    begun = [wish.start for wish in (job.workers, job.servers)] != [None, None]
    if begun or (not rules.adviser.brain and not has_history(rules.adviser.history)):
        return small, rules
    try:
        advice = _asked(rules, first_view(job, rules))
        wrong = acceptance.refused(advice, first_view(job, rules), rules.config, epoch=0, now=0.0)
    except errors.UserError:
        raise
    except (errors.SpringtideError, TimeoutError) as error:
        return small, replace(rules, why=f"{rules.why}: no adviser answered ({str(error) or 'no answer'})")
    if wrong:
        return small, replace(rules, why=f"{rules.why}: advice was refused, {wrong}")
    if advice.plan is None or advice.plan.stage is not PlanningStage.OPTIMIZING:
        return small, replace(rules, why=advice.plan.reason if advice.plan else rules.why)
    return advice.plan.shape, replace(rules, why=advice.plan.reason, stage=PlanningStage.OPTIMIZING)


def first_view(job: ElasticJob, rules: PlanRules) -> JobView:
    assert rules.bounds is not None
    features = {**rules.identity.features, "sync": job.sync}
    return JobView(
        name=job.name, facts=UNKNOWN, bounds=rules.bounds, identity=replace(rules.identity, features=features)
    )


def has_history(history: str) -> bool:
    return bool(history) and ("://" in history or pathlib.Path(history).exists())


def _asked(rules: PlanRules, view: JobView) -> Advice:
    """Call the adviser in a thread, because the caller may have a running event loop and a policy may hang."""
    from springtide.brain.service import advisers  # imported here, because only a job with a brain or a history asks

    async def ask() -> Advice:
        adviser = advisers.make_adviser(rules)
        try:
            return await adviser.advise(view, epoch=0, now=0.0)
        finally:
            await adviser.close()

    thread = advisers.AdviserThread()
    try:
        return thread.submit(ask).result(ASK_S)
    finally:
        thread.stop()
