"""Job views for policy tests: sensible ones and arbitrary ones."""

import math
from dataclasses import fields, replace

from hypothesis import strategies as st

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import GIB, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.plan.view import (
    ClusterView,
    FindingKind,
    GuardFinding,
    JobView,
    LaunchTime,
    PastJob,
    RoleUse,
    TrainingProgress,
)
from springtide.domain.spec.planning_config import PlanningIdentity, PlanningStage
from springtide.planning.perf_model import equations

FACTS = ModelFacts(dense_bytes=4e6, bandwidth=1e9, dim=416, batch=512)
TRUE = equations.Coefficients(grad=2e-4, upd=0.02, sync=1.0, emb=2e-8, beta=0.01)
BOUNDS = ShapeBounds(
    least=Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5),
    most=Shape(workers=48, servers=16, worker_cpu=32, server_cpu=32, worker_memory=64 * GIB, server_memory=64 * GIB),
    quota=ResourceBudget(cpu=200, memory=1e13),
)
AMPLE = ResourceBudget(cpu=10_000, memory=1e15)


def shape(workers=4, servers=2, worker_cpu=4.0, server_cpu=8.0, **memory):
    return Shape(workers=workers, servers=servers, worker_cpu=worker_cpu, server_cpu=server_cpu, **memory)


def profile(of, *, at=0.0, steps=200, truth=TRUE):
    """A worker's measurements in this shape: one window, sums over all workers' steps."""
    gradient, update, sync, lookup, constant = equations.terms(truth, FACTS, of)
    total = gradient + update + sync + lookup + constant
    timing = TimingSum(
        steps=steps,
        samples=steps * FACTS.batch,
        total_s=steps * total,
        gradient_s=steps * (gradient + constant),
        update_s=steps * update,
        synchronization_s=steps * sync,
        lookup_s=steps * lookup,
    )
    return Profile(shape=of, batch=FACTS.batch, timing=timing, at=at)


def uses(of, *, worker=0.5, server=0.5, hot=None):
    """Parts of their cores that workers and servers use; server 0 another part, if hot."""
    listed = [
        RoleUse(role=Role(RoleKind.WORKER, rank), cpu_used=worker * of.worker_cpu, cpu=of.worker_cpu)
        for rank in range(of.workers)
    ]
    for rank in range(of.servers):
        share = hot if hot is not None and rank == 0 else server
        listed.append(RoleUse(role=Role(RoleKind.SERVER, rank), cpu_used=share * of.server_cpu, cpu=of.server_cpu))
    return tuple(listed)


IDENTITY = {each.name for each in fields(PlanningIdentity)}
PROGRESS = {each.name for each in fields(TrainingProgress)}


def job_view(**given):
    """A view from flat fields: those of its identity and its progress too."""
    groups = {}
    for group, kind, names in (("identity", PlanningIdentity, IDENTITY), ("progress", TrainingProgress, PROGRESS)):
        groups[group] = kind(**{name: value for name, value in given.items() if name in names})
    return JobView(**groups, **{name: value for name, value in given.items() if name not in IDENTITY | PROGRESS})


def at_times(job, **progress):
    return replace(job, progress=replace(job.progress, **progress))


def running(of=None, *, tried=(), name="job", **more):
    """A job that was in some shapes before and is in this one now."""
    of = of or shape()
    profiles = tuple(profile(one, at=float(at)) for at, one in enumerate(tried))
    usual = {
        "name": name,
        "facts": FACTS,
        "bounds": BOUNDS,
        "shape": of,
        "started_at": 0.0,
        "last_change_at": 100.0,
        "stage": PlanningStage.ADJUSTING,
        "samples_total": 1e9,
        "uses": uses(of),
        "profiles": (*profiles, profile(of, at=200.0)),
    }
    return job_view(**(usual | more))


def waiting(name="job", **more):
    return job_view(name=name, facts=FACTS, bounds=BOUNDS, samples_total=1e9, **more)


def cluster(*jobs, now=1000.0, capacity=AMPLE, **more):
    return ClusterView(now=now, capacity=capacity, jobs=jobs, **more)


ODD = st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e300])
NUMBERS = st.floats(0, 1e6) | ODD


@st.composite
def shapes(draw):
    return Shape(
        workers=draw(st.integers(1, 60)),
        servers=draw(st.integers(1, 20)),
        worker_cpu=draw(st.floats(0.1, 40)),
        server_cpu=draw(st.floats(0.1, 40)),
        worker_memory=draw(st.integers(0, 8)) * GIB,
        server_memory=draw(st.integers(0, 8)) * GIB,
    )


@st.composite
def profiles(draw):
    of = draw(shapes())
    if draw(st.booleans()):
        return profile(of, at=draw(st.floats(0, 1e4)), steps=draw(st.integers(0, 300)))
    timing = TimingSum(
        steps=draw(st.integers(0, 5)),
        samples=draw(st.integers(0, 999)),
        **{each: draw(NUMBERS) for each in ("total_s", "gradient_s", "update_s", "synchronization_s", "lookup_s")},
    )
    cores = {each: draw(st.none() | NUMBERS) for each in ("worker_cores", "server_cores")}
    return Profile(shape=of, batch=512, timing=timing, at=draw(NUMBERS), **cores)


@st.composite
def jobs(draw, name):
    of = draw(st.none() | shapes())
    roles = st.builds(Role, st.sampled_from([RoleKind.WORKER, RoleKind.SERVER]), st.integers(0, 20))
    used = st.builds(
        RoleUse,
        role=roles,
        cpu_used=NUMBERS,
        cpu=NUMBERS,
        memory_used=st.integers(0, 1 << 40),
        memory=st.integers(0, 1 << 40),
    )
    found = st.builds(
        GuardFinding,
        trouble=st.sampled_from(list(FindingKind)),
        role=roles,
        why=st.just("seen"),
        servers=st.none() | st.integers(-1, 99),
    )
    own = list(draw(st.lists(profiles(), max_size=3)))
    if of is not None and draw(st.booleans()):
        own.append(profile(of, at=draw(st.floats(0, 2e3))))
    bounds = draw(st.sampled_from([BOUNDS, replace(BOUNDS, quota=ResourceBudget(cpu=20, memory=1e11))]))
    return job_view(
        name=name,
        facts=FACTS,
        bounds=bounds,
        shape=of,
        requested=draw(st.none() | shapes()),
        need=MemoryNeed(rows=draw(st.integers(0, 1 << 40))),
        stage=draw(st.sampled_from(list(PlanningStage))),
        started_at=draw(st.none() | NUMBERS),
        last_change_at=draw(st.none() | NUMBERS),
        samples_done=draw(st.floats(0, 1e9)),
        samples_total=draw(st.none() | NUMBERS),
        profiles=tuple(own),
        uses=tuple(draw(st.lists(used, max_size=4))),
        findings=tuple(draw(st.lists(found, max_size=2))),
        features={"model": draw(st.sampled_from(["a", "b", ""]))},
        launches=tuple(draw(st.lists(launches(), max_size=2))),
    )


def launches():
    return st.builds(
        LaunchTime,
        kind=st.sampled_from([RoleKind.WORKER, RoleKind.SERVER]),
        cpu=NUMBERS,
        memory=st.just(0),
        seconds=NUMBERS,
    )


@st.composite
def clusters(draw):
    past = st.builds(
        PastJob,
        name=st.just("past"),
        features=st.dictionaries(st.sampled_from(["model", "x"]), NUMBERS | st.text(max_size=2)),
        shape=st.none() | shapes(),
        finished=st.booleans(),
        ended_at=NUMBERS,
    )
    count = draw(st.integers(0, 4))
    return ClusterView(
        now=draw(st.floats(0, 1e4) | st.just(math.nan)),
        capacity=ResourceBudget(cpu=draw(st.floats(0, 2000)), memory=draw(st.sampled_from([0.0, 1e11, 1e15]))),
        jobs=tuple(draw(jobs(f"job-{at}")) for at in range(count)),
        history=tuple(draw(st.lists(past, max_size=10))),
        launches=tuple(draw(st.lists(launches(), max_size=2))),
    )


def speed(of, truth=TRUE):
    """Samples a second of that shape, in truth."""
    return equations.throughput(truth, FACTS, of)
