"""Simulate the papers' test beds: one job at a time on a fault-free cluster of 20 nodes.

In: seeds. Out: rows of Figs. 7, 8, 10 and 11 of DLRover-RM (000), of Tables 1 and 2 and Fig. 9 of DLRover (001).
Table 1 uses DLRover's own equations (`planning.lifecycle.stages`, Eqns 10 and 11). Jobs with slow roles: `trouble`.
"""

import math
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from springtide.domain.core.shape import GIB, MemoryNeed, Shape
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.lifecycle import stages
from springtide.planning.perf_model import fit, measurements
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.policy import registry
from springtide.sim.engine import running_job, systems
from springtide.sim.engine.running_job import JobOutcome
from springtide.sim.engine.simulation import Simulation, Story
from springtide.sim.world import workload
from springtide.sim.world import world as world_model
from springtide.sim.world.parameters import MODELS, ClusterWorld, PaperModel
from springtide.sim.world.world import JobFaults, TrueJob
from springtide_lab.reproduce.dlrover_rm import step_policies
from springtide_lab.reproduce.report import BENCHES, NOT_IN_TEXT, Row, missing, published, row

WORLD = ClusterWorld().changed(
    nodes=20,
    pending_s_a_core=0.0,
    pod_failures_a_day=0.0,
    preemptions_a_day=0.0,
    checkpoint_s=90.0,
    prepare_s=300.0,
    load_s=90.0,
)
"""The small cluster of 000 §6, "which eliminates the impact of cloud instability": 20 nodes, no faults.

Pods start after the 20 s of 001 §6.3. A stop and restart takes 8 minutes (000 §6.2: 5 to restart and 3 to save and
load).
"""
TWELVE_MIN_S, AT_THE_END_S = 720.0, 1e9
DRAWS = 20
"""Number of draws of 36 shapes per seed for Fig. 11, because the error of Eqn 1 varies from 7 to 33% between draws."""
TUNED_NEED = MemoryNeed(worker=4 * GIB, server=GIB, rows=56 * GIB)
"""Memory by 001 Table 2: 4 GB per worker, 8 servers of 8 GB."""


def job_of(model: PaperModel, seed: int, **faults: Any) -> TrueJob:
    """Return the test bed's job; it requests the shape tuned by hand."""
    return replace(workload.one(WORLD, model, requested=model.tuned), seed=seed * 8, faults=JobFaults(**faults))


def tell(
    job: TrueJob,
    name: str,
    *,
    history: Iterable[PastJob] = (),
    mechanisms: systems.Mechanisms | None = None,
    cores: float | None = None,
) -> Story:
    """Simulate a job under a policy. `cores` replaces the usual limit of cores."""
    config = PlanningConfig(exact_seconds=0.0, total_cpu=cores or PlanningConfig().total_cpu)
    world = WORLD if cores is None else WORLD.changed(job_cpu=cores)
    if name == "oracle":
        system = systems.oracle([job])
    elif name in ("es", "optimus"):
        system = step_policies.system(name, job.model)
    else:
        system = systems.system(name, registry.load(name))
    if mechanisms is not None:
        system = replace(system, mechanisms=mechanisms)
    return Simulation(world, [job], system, config=config, history=history, record=[job.name]).run()


def end(job: TrueJob, name: str, **given: Any) -> JobOutcome:
    return tell(job, name, **given).outcomes[-1]


def learned(model: PaperModel, seed: int) -> list[PastJob]:
    return history_of(job_of(model, seed + 1000))


def history_of(job: TrueJob) -> list[PastJob]:
    outcome = end(job, "springtide")
    return [
        PastJob(
            name=f"earlier-{number}",
            user=job.user,
            features=running_job.features(job),
            initial=outcome.tally.initial,
            shape=outcome.final,
            ended_at=float(number),
            facts=job.facts,
            need=TUNED_NEED,
        )
        for number in range(3)
    ]


def speed_at(story: Story, seconds: float) -> float:
    """Return the steps per second at `seconds` after the submission."""
    known = [steps for at, steps in story.speeds.get("job", []) if at <= seconds]
    return known[-1] if known else 0.0


def less(ours: float, theirs: float) -> float:
    return 1 - ours / theirs


def completion(seeds: Sequence[int]) -> list[Row]:
    """Return Fig. 7: completion times compared with shapes tuned by hand, ES, Optimus and the oracle."""
    rows, by_es, by_optimus = [], [], []
    for model in MODELS.values():
        tuned, ratio = [], []
        for seed in seeds:
            job = job_of(model, seed)
            ours = end(job, "springtide", history=learned(model, seed)).jct_s
            tuned.append(ours / end(job, "static").jct_s - 1)
            ratio.append(ours / end(job, "oracle").jct_s - 1)
            by_es.append(less(ours, end(job, "es").jct_s))
            by_optimus.append(less(ours, end(job, "optimus").jct_s))
        paper: float | str = 0.014 if model.name == "widedeep" else NOT_IN_TEXT
        rows.append(row("000 Fig. 7", f"{model.name}: JCT above hand tuning", paper, tuned, goal=0.014, better="lower"))
        rows.append(row("oracle", f"{model.name}: JCT above the oracle's", "-", ratio, goal=0.05, better="lower"))
    note = "ours starts from the history of one earlier run; ES and Optimus follow 001 §6.3"
    rows.append(
        row("000 Fig. 7", "JCT saved against ES, mean of models", 0.177, _means(by_es, seeds), goal=0.177, why=note)
    )
    rows.append(row("000 Fig. 7", "JCT saved against Optimus", 0.285, _means(by_optimus, seeds), goal=0.285))
    return rows


def other_widths(seeds: Sequence[int]) -> list[Row]:
    """Compare with the oracle for jobs that differ from the models as jobs of a cluster's day do."""
    from_nothing, from_history = [], []
    for model in MODELS.values():
        for seed in seeds:
            random = np.random.default_rng([seed, 77])
            job = workload.jittered(job_of(model, seed), random, WORLD.jobs.family_spread)
            earlier = workload.jittered(replace(job, seed=seed * 8 + 8000), random, WORLD.jobs.job_spread)
            best = end(job, "oracle").jct_s
            from_history.append(end(job, "springtide", history=history_of(earlier)).jct_s / best - 1)
            from_nothing.append(end(job, "springtide").jct_s / best - 1)
    what = "jobs of other widths, mean of models: JCT above the oracle's"
    note = "the oracle saves the 60 s of a sample, and the 120 s until the pods of the second shape run"
    return [
        row("oracle", what, "-", _means(from_history, seeds), goal=0.05, better="lower"),
        row("oracle", f"{what}, cold", "-", _means(from_nothing, seeds), why=note),
    ]


def _means(values: Sequence[float], seeds: Sequence[int]) -> list[float]:
    return [float(np.mean(values[place :: len(seeds)])) for place in range(len(seeds))]


def cold_start(seeds: Sequence[int]) -> list[Row]:
    """Return 000 Fig. 10 and 001 Fig. 9: speed, and time to reach it, from a cold start.

    The Wide & Deep job of 001 has a hot server.
    """
    kinds = {"widedeep": {}, "hot": {"hot": WORLD.faults.hot_load}, "xdeepfm": {}}
    stories = {
        (kind, name): [tell(job_of(MODELS.get(kind, MODELS["widedeep"]), seed, **changes), name) for seed in seeds]
        for kind, changes in kinds.items()
        for name in ("springtide", "es", "optimus")
    }

    def speeds(name: str, policy: str, at: float = TWELVE_MIN_S) -> list[float]:
        return [speed_at(story, at) for story in stories[name, policy]]

    def below(name: str, policy: str) -> list[float]:
        pairs = zip(stories[name, "springtide"], stories[name, policy], strict=True)
        return [less(ours.outcomes[-1].jct_s, theirs.outcomes[-1].jct_s) for ours, theirs in pairs]

    settled = [
        (story.outcomes[-1].scaling_s + story.outcomes[-1].pending_s) / 60 for story in stories["hot", "springtide"]
    ]
    hot = "a hot server that additional servers do not relieve (001 §6.3)"
    return [
        row("000 Fig. 10", "widedeep: steps/s at 12 min", 250.0, speeds("widedeep", "springtide"), goal=250.0),
        row("000 Fig. 10", "widedeep: ES, steps/s at 12 min", "100-150", speeds("widedeep", "es")),
        row("000 Fig. 10", "widedeep: Optimus, steps/s at 12 min", "100-150", speeds("widedeep", "optimus")),
        row("001 Fig. 9", "widedeep: minutes until adjusted", 12.0, settled, goal=12.0, better="lower", why=hot),
        row("001 Fig. 9", "widedeep: JCT saved against ES", 0.30, below("hot", "es"), goal=0.30, why=hot),
        row("001 Fig. 9", "xdeepfm: JCT saved against ES", 0.10, below("xdeepfm", "es"), goal=0.10),
    ]


def fitted(seeds: Sequence[int]) -> list[Row]:
    """Return Fig. 11: the model is fitted to some shapes, and its errors are those on other shapes, as means over draws
    by seed."""
    found = np.array([_mean_mapes(seed) for seed in seeds])
    alone, planned, knowing, within = (column.tolist() for column in found.T)
    what = "widedeep: MAPE on shapes not measured"
    own = "as in the paper's figure, the curves are fitted to all points shown"
    bound = (
        "no goal, because the text has no such figure: Eqn 1 ignores shapes whose cores are all busy (001 Eqn "
        "4), which exist in this world. No plan uses Eqn 1 alone: if cores are busy, plans use the observed "
        "speed of a core"
    )
    return [
        row(
            "000 Fig. 11",
            "widedeep: MAPE on the shapes that Eqn 1 was fitted to",
            NOT_IN_TEXT,
            within,
            goal=0.10,
            better="lower",
            why=own,
        ),
        row("000 Fig. 11", f"{what}, as plans foretell", NOT_IN_TEXT, planned, goal=0.10, better="lower"),
        row("000 Fig. 11", f"{what}, Eqn 1 alone", NOT_IN_TEXT, alone, why=bound, bound=knowing),
        row("bound", f"{what}, Eqn 1 fitted to these very shapes without noise", "-", knowing),
    ]


def _mean_mapes(seed: int) -> list[float]:
    found = [each for draw in range(DRAWS) if (each := _mapes(seed * DRAWS + draw)) is not None]
    return [float(np.mean(one)) for one in zip(*found, strict=True)] if found else [math.nan] * 4


def _mapes(seed: int) -> tuple[float, float, float, float] | None:
    """Return four errors, or None if a fit fails.

    Three errors are on unmeasured shapes: of Eqn 1 alone, of the model that plans use, and of Eqn 1 fitted to these
    shapes themselves. The fourth is the error of Eqn 1 on the shapes that it was fitted to.
    """
    random = np.random.default_rng(seed)
    job = job_of(MODELS["widedeep"], seed)
    shapes = [_random_shape(random) for _ in range(36)]
    profiles = [measured(job, shape, random, float(number)) for number, shape in enumerate(shapes[:12])]
    now = world_model.speed(job, shapes[11])
    rate = measurements.throughput(shapes[11], profiles[-1].timing) or math.nan
    pace = measurements.CoreSpeed(rate / now.worker_cores, rate / now.server_cores)
    alone, planned = fit.fit(profiles, job.facts), fit.fit(profiles, job.facts, pace)
    others = shapes[12:]
    exact = [
        world_model.profile(job, shape, world_model.speed(job, shape), steps=100, at=0.0, noise=(1.0,) * 5)
        for shape in others
    ]
    knowing = fit.fit(exact, job.facts)
    if not (isinstance(alone, FittedModel) and isinstance(planned, FittedModel) and isinstance(knowing, FittedModel)):
        return None
    truth = np.array([world_model.speed(job, shape).steps_s * job.facts.batch for shape in others])
    predicted = (
        [alone.predict(shape) for shape in others],
        [min(planned.predict(shape), measurements.ceiling_of(pace, shape)) for shape in others],
        [knowing.predict(shape) for shape in others],
    )
    alone_off, plans_off, knowing_off = (float(np.mean(np.abs(np.array(some) / truth - 1))) for some in predicted)
    return alone_off, plans_off, knowing_off, alone.mape


def _random_shape(random: np.random.Generator) -> Shape:
    workers, servers = int(random.integers(2, 33)), int(random.integers(2, 13))
    return Shape(
        workers=workers,
        servers=servers,
        worker_cpu=float(random.choice([2, 3, 4, 6, 8])),
        server_cpu=float(random.choice([8, 12, 16, 24, 32])),
    )


def measured(job: TrueJob, shape: Shape, random: np.random.Generator, at: float = 0.0) -> Profile:
    """Return a profile of 100 steps with the test bed's noise."""
    noise = tuple(np.exp(random.normal(0.0, WORLD.measured.noise, size=5)).tolist())
    return world_model.profile(job, shape, world_model.speed(job, shape), steps=100, at=at, noise=noise)


SPEED_UP = {"widedeep": 0.73, "xdeepfm": 0.96}
OPTIMIZED = {"widedeep": 210.0, "xdeepfm": 47.8}
ADJUSTED = {"widedeep": 258.0, "xdeepfm": 56.0}
"""Figures of 001 Table 1 and §4.2: speed-up, steps/s with the shape of Table 2, and steps/s at the end."""
WHY = {
    "widedeep": "one worker and one server make 12 steps/s in 001, and 3 by the coefficients of 000, which are "
    "used here: so more servers make every worker faster",
    "xdeepfm": "the worker of 001 used 19 of 32 cores; by the coefficients from its other figures, it uses nearly all",
}
"""Reasons why the speed-ups differ from the paper's."""
BEYOND_CORES = 232.0
"""Cores in 001 §4.2: 8 + 2 workers of 20 cores and 2 servers of 16; two of the workers exceed the quota."""
WITHIN = (
    f"the paper's 56 steps/s used {BEYOND_CORES:g} cores, including two workers of low priority; within 200 "
    f"cores its shape makes 47.8, and no shape is faster than ours"
)


def by_use(model: PaperModel) -> tuple[float, float, Shape]:
    """Return steps/s of the sample run, steps/s of the shape that DLRover's equations find from it, and that shape."""
    job, limits, config = job_of(model, 0), running_job.bounds(WORLD, elastic=True), PlanningConfig()
    sample = Shape(workers=1, servers=1, worker_cpu=config.node_cpu, server_cpu=config.node_cpu)
    servers = stages.servers_first(sample, _need(world_model.speed(job, sample), sample), limits, config)
    size = stages.workers_then(servers, _need(world_model.speed(job, servers), servers), limits, config)
    return world_model.speed(job, sample).steps_s, world_model.speed(job, size).steps_s, size


def _need(speed: world_model.Speed, shape: Shape) -> stages.MeasuredNeed:
    return stages.MeasuredNeed(
        worker_cpu=speed.worker_cores / shape.workers, server_cpu=speed.server_cores / shape.workers
    )


def sizes() -> list[Row]:
    """Return Table 1, computed with DLRover's equations only."""
    found = []
    for name, paper in SPEED_UP.items():
        one, many, size = by_use(MODELS[name])
        found.append(
            row("001 Table 1", f"{name}: speed-up by Eqns 10, 11", paper, [many / one / size.workers], why=WHY[name])
        )
        shape = f"{size.workers} x {size.worker_cpu:g}, {size.servers} x {size.server_cpu:g}"
        found.append(row("001 Table 1", f"{name}: steps/s by Eqns 10, 11 ({shape})", OPTIMIZED[name], [many]))
    return found


def adjusted(seeds: Sequence[int]) -> list[Row]:
    """Return the speeds that our planner reaches in the end from a cold start; for Wide & Deep also with a hot
    server."""
    wide, hot = MODELS["widedeep"], WORLD.faults.hot_load
    before = [
        world_model.speed(job_of(wide, seed), wide.tuned, world_model.FaultCondition(hot=hot)).steps_s for seed in seeds
    ]
    rows = [row("001 Table 1", "widedeep: steps/s with a hot server, as tuned", OPTIMIZED["widedeep"], before)]
    for name, changes in (("widedeep", {"hot": hot}), ("widedeep", {}), ("xdeepfm", {})):
        jobs = [job_of(MODELS[name], seed, **changes) for seed in seeds]
        stories = [tell(job, "springtide") for job in jobs]
        ours = [speed_at(story, AT_THE_END_S) for story in stories]
        what, deep = f"{name}{', a hot server' if changes else ''}", name == "xdeepfm"
        paper, why = (OPTIMIZED[name], WITHIN) if deep else (ADJUSTED[name], "")
        best = [] if changes else [_last_speed(job, "oracle") for job in jobs]
        rows.append(row("001 Table 1", f"{what}: steps/s, adjusted", paper, ours, goal=paper, why=why, bound=best))
        if deep:
            many = [_last_speed(job, "springtide", cores=BEYOND_CORES) for job in jobs]
            with_as_many = f"{what}: steps/s, adjusted, with the paper's {BEYOND_CORES:g} cores"
            rows.append(row("001 Table 1", with_as_many, ADJUSTED[name], many, goal=ADJUSTED[name]))
        if not changes:
            rows.append(row("oracle", f"{what}: steps/s of the oracle", "-", best))
            finals = [story.outcomes[-1].final for story in stories]
            cores = [final.cpu / MODELS[name].tuned.cpu if final else None for final in finals]
            rows.append(row("001 Table 2", f"{what}: cores, of those tuned by hand", NOT_IN_TEXT, cores))
    return rows


def _last_speed(job: world_model.TrueJob, name: str, cores: float | None = None) -> float:
    return speed_at(tell(job, name, cores=cores), AT_THE_END_S)


def tables(seeds: Sequence[int]) -> list[Row]:
    """Return Tables 1 and 2 of DLRover (001)."""
    return [*sizes(), *adjusted(seeds)]


def trained(folder: pathlib.Path = BENCHES) -> list[Row]:
    """Return rows of real training, Fig. 8 of 000 and §6.2 of 001, from the published `bench auc` and `auc-xdeepfm`."""
    papers = (("widedeep", "auc", 0.0004), ("xdeepfm", "auc-xdeepfm", 0.0006))
    return [row for model, bench, within in papers for row in _trained(folder, model, bench, within)]


def _trained(folder: pathlib.Path, model: str, bench: str, within: float) -> list[Row]:
    found, command = published(folder / f"{bench}.json"), f"`springtide bench {bench} --json`"
    what = (f"{model}: AUC, disturbed less undisturbed", f"{model}: AUC between kinds of runs")
    if found is None or not found.get("details", {}).get("disturbed"):
        why = f"this needs trained models: run {command}; no result is published here"
        return [missing("000 Fig. 8", what[0], NOT_IN_TEXT, why), missing("001 §6.2", what[1], within, why)]
    calm, disturbed = found["details"]["undisturbed"], found["details"]["disturbed"]
    pairs = [after - before for before, after in zip(calm, disturbed, strict=True)]
    every = [*calm, *disturbed]
    between = abs(sum(pairs) / len(pairs))
    within_all = max(every) - min(every)
    why = f"really trained: {command} of {found['date']}, {len(pairs)} seeds; all runs lie within {within_all:.4f}"
    return [
        row("000 Fig. 8", what[0], NOT_IN_TEXT, pairs, why=why),
        row("001 §6.2", what[1], within, [between], goal=0.0006, better="lower", why=why),
    ]


def rows(seeds: Sequence[int]) -> list[Row]:
    simulated = [*completion(seeds), *other_widths(seeds), *cold_start(seeds), *fitted(seeds)]
    return [*simulated, *tables(seeds), *trained()]
