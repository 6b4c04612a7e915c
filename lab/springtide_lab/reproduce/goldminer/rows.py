"""Compute the rows of Table 5 and Fig. 14, their bounds and their sensitivity, and rows of single jobs.

In: seeds and a `TracePreset`. Out: `Row`s. The number, duration and ratios of jobs are calibrated with the two lines
of Table 5 without data workers. All other lines are predictions.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import optimize, sparse

from springtide_lab.reproduce import runner
from springtide_lab.reproduce.goldminer import cluster, jobs
from springtide_lab.reproduce.goldminer.cluster import Figures, walk
from springtide_lab.reproduce.goldminer.jobs import MODELS, Job, TracePreset
from springtide_lab.reproduce.goldminer.systems import FIXED, HARDWARE, MAXTP, SRTF, SYSTEMS, TUNED, SharingSystem
from springtide_lab.reproduce.report import BENCHES, NOT_IN_TEXT, Row, goal_row, missing, published, published_goal, row

SLOT_MIN = 10.0
Results = Mapping[SharingSystem, Sequence[Figures]]
"""Figures of each system, with one value for each seed."""
TABLE, PICTURE, PART_2 = "002 Table 5", "002 Fig. 14", "002 §2"
CALIBRATED = "an input: determines the number and the mean duration of jobs"
HARDER = "an input: determines the cores that jobs need and the longest duration; all lines below are results"
BOUND = (
    "an upper bound: every job starts at once and always has all the cores that it needs; larger if jobs queue "
    "for longer"
)
WITH_CORES = (
    "an upper bound with these cores and GPUs, by a linear program that knows all jobs in advance and moves "
    "cores at no cost (lab/springtide_lab/reproduce/goldminer/rows.py)"
)
OVERLOAD = (
    "Fair slows all jobs equally, by about the shortage of cores; in Table 5 its jobs run for 1.67 times their "
    "ideal time (352 - 14 over 202 min)"
)
CALIBRATED_THERE = (
    "for other ratios of cores to GPUs there are fewer jobs (110, 102, 80 and 70), so that the median of 60 "
    "seeds equals Table 5; other rows, and these seeds, are results"
)
SENSITIVE = "effect of the assumptions on the figures: paired medians over seeds"
Change = Callable[[TracePreset], TracePreset]
VARIANTS: dict[str, Change] = {
    "cores a GPU: ResNet18's 27": lambda preset: _of_ratios(preset, "three full"),
    "cores a GPU: mean 22.5": lambda preset: _of_ratios(preset, "mean 22.5"),
    "cores a GPU: in the order of §5.6": lambda preset: _of_ratios(preset, "in order"),
    "cores a GPU: the highest allowed": lambda preset: _of_ratios(preset, "highest"),
    "a third fewer jobs": lambda preset: replace(preset, jobs=preset.jobs * 2 // 3),
    "a third more jobs": lambda preset: replace(preset, jobs=preset.jobs * 4 // 3),
    "jobs of up to 8 hours in the trace": lambda preset: replace(preset, longest="8 h"),
    "jobs of up to 2 days in the trace": lambda preset: replace(preset, longest="2 days"),
    "trainers keep 5 cores at least": lambda preset: replace(preset, keep=5.0),
}
"""Alternative assumptions, by description."""
AS_MANY = {"chosen": 121, "three full": 110, "mean 22.5": 102, "in order": 80, "highest": 70}
"""Numbers of jobs by ratios, so that No DW (tuned C/G) queues for about the 338 min of Table 5 (median of 60 seeds)."""


def _of_ratios(preset: TracePreset, ratios: str) -> TracePreset:
    """Return the preset with other ratios, and with fewer jobs so that the first line of Table 5 still holds."""
    return replace(preset, ratios=ratios, jobs=round(preset.jobs * AS_MANY[ratios] / AS_MANY["chosen"]))


def results(
    preset: TracePreset, seeds: Sequence[int], which: Sequence[SharingSystem] = SYSTEMS
) -> dict[SharingSystem, list[Figures]]:
    """Simulate all systems on the same jobs; seeds run in parallel processes."""
    each = runner.in_parallel(functools.partial(_of_seed, preset, which), seeds)
    return {system: [figures[at] for figures in each] for at, system in enumerate(which)}


def _of_seed(preset: TracePreset, which: Sequence[SharingSystem], seed: int) -> list[Figures]:
    drawn = jobs.draw(preset, seed)
    return [cluster.figures(cluster.run(drawn, system, preset, seed), preset.measured_min) for system in which]


def table_5(found: Results) -> list[Row]:
    """Return Table 5: completion, gain and queueing of each system."""
    rows = []
    base = [one.jct for one in found[TUNED]]
    for system in SYSTEMS:
        why = {TUNED: CALIBRATED, HARDWARE: HARDER}.get(system, "")
        each = found[system]
        rows.append(row(TABLE, f"{system.name}: JCT, min", system.jct, [one.jct for one in each], why=why))
        if system is not TUNED:
            gains = [was / one.jct for was, one in zip(base, each, strict=True)]
            goal = None if system is HARDWARE else system.gain
            rows.append(row(TABLE, f"{system.name}: JCT gain over No DW (tuned)", system.gain, gains, goal=goal))
        goal = max(system.queueing, 1.0) if system.elastic else None
        queued = [one.queueing for one in each]
        rows.append(row(TABLE, f"{system.name}: queueing, min", system.queueing, queued, goal=goal, better="lower"))
    return rows


def others(found: Results) -> list[Row]:
    rows = []
    for system in (one for one in found if one not in SYSTEMS):
        each, why = found[system], f"metric {system.metric}"
        gains = [was.jct / now.jct for was, now in zip(found[TUNED], each, strict=True)]
        rows.append(row("own", f"{system.name}: JCT, min", "-", [one.jct for one in each], why=why))
        rows.append(row("own", f"{system.name}: JCT gain over No DW (tuned)", "-", gains, why=why))
        rows.append(row("own", f"{system.name}: queueing, min", "-", [one.queueing for one in each], why=why))
        rows.append(row("own", f"{system.name}: GPUs allocated", "-", [one.gpus for one in each], why=why))
    return rows


def bounds(preset: TracePreset, found: Results, seeds: Sequence[int]) -> list[Row]:
    there = preset.machines * preset.cpus * preset.period_min
    drawn = [jobs.draw(preset, seed) for seed in seeds]
    wanted = [sum(job.minutes * job.gpus * job.model.ratio for job in some) / there for some in drawn]
    best = [sum(job.minutes for job in some) / len(some) for some in drawn]
    feasible = runner.in_parallel(functools.partial(least_jct, preset=preset), drawn)
    gains = [one.jct / least for one, least in zip(found[TUNED], best, strict=True)]
    with_cores = [one.jct / least for one, least in zip(found[TUNED], feasible, strict=True)]
    near = [least / one.jct for one, least in zip(found[SRTF], feasible, strict=True)]
    return [
        row("bound", "JCT gain over No DW (tuned), at most", "-", gains, why=BOUND),
        row("bound", "JCT, min, at least with these cores", "-", feasible, why=WITH_CORES),
        row("bound", "JCT gain over No DW (tuned), at most with these cores", "-", with_cores, why=WITH_CORES),
        row("bound", "SRTF: share of that gain", "-", near, why=WITH_CORES),
        row("bound", "cores needed at ideal speed, relative to available cores", "-", wanted, why=OVERLOAD),
    ]


def use(found: Results) -> list[Row]:
    """Return Fig. 14: shares allocated in the first 500 min, fragmentation (section 2), places of data workers."""
    rows = []
    paper = {TUNED: 0.355, FIXED: 0.438, MAXTP: 0.76}
    for system in SYSTEMS:
        goal = paper[system] if system is MAXTP else None
        gpus = [one.gpus for one in found[system]]
        rows.append(row(PICTURE, f"{system.name}: GPUs allocated", paper.get(system, NOT_IN_TEXT), gpus, goal=goal))
        rows.append(row(PICTURE, f"{system.name}: cores allocated", NOT_IN_TEXT, [one.cpus for one in found[system]]))
    more = [now.gpus / was.gpus for now, was in zip(found[MAXTP], found[TUNED], strict=True)]
    rows.append(row(PICTURE, "MaxTP: GPUs relative to No DW (tuned)", 2.1, more, goal=2.1))
    for system in SYSTEMS:
        apart = [one.fragmentation for one in found[system]]
        rows.append(
            row(
                PART_2,
                f"{system.name}: fragmentation",
                0.0 if system is HARDWARE else NOT_IN_TEXT,
                apart,
                why="|share of free cores - share of free GPUs|, mean of machines over 500 min; includes times "
                "when all cores are in use and GPUs wait for jobs",
            )
        )
        if system.elastic:
            local = [one.local for one in found[system]]
            rows.append(row("002 §3.4.2", f"{system.name}: data workers beside a trainer", NOT_IN_TEXT, local))
    return rows


def sensitivity(preset: TracePreset, seeds: Sequence[int]) -> list[Row]:
    """Return the gains with other assumptions, and the queueing of No DW (tuned), which should stay the same."""
    rows = []
    for name, change in VARIANTS.items():
        found = results(change(preset), seeds)
        queued, gpus = [one.queueing for one in found[TUNED]], [one.gpus for one in found[MAXTP]]
        more = [now / was.gpus for now, was in zip(gpus, found[TUNED], strict=True)]
        rows += [
            row("sensitivity", f"{name}: {TUNED.name}, queueing, min", TUNED.queueing, queued, why=CALIBRATED_THERE),
            row("sensitivity", f"{name}: {MAXTP.name}, GPUs allocated", 0.76, gpus, why=SENSITIVE),
            row("sensitivity", f"{name}: {MAXTP.name}, GPUs relative to No DW (tuned)", 2.1, more, why=SENSITIVE),
        ]
        for system in SYSTEMS[1:]:
            gains = [was.jct / now.jct for was, now in zip(found[TUNED], found[system], strict=True)]
            rows.append(row("sensitivity", f"{name}: {system.name}, JCT gain", system.gain, gains, why=SENSITIVE))
    return rows


def least_jct(jobs: Sequence[Job], preset: TracePreset) -> float:
    cores, gpus = preset.machines * preset.cpus, preset.machines * preset.gpus
    work = sum(job.minutes * job.gpus * job.model.ratio for job in jobs)
    horizon = max(job.at for job in jobs) + work / cores + 2 * max(job.minutes for job in jobs)
    slots, count = math.ceil(horizon / SLOT_MIN) + 1, len(jobs)
    starts = SLOT_MIN * np.arange(slots)
    at, minutes, trainers = (np.array([getattr(job, name) for job in jobs]) for name in ("at", "minutes", "gpus"))
    wants = np.array([job.gpus * job.model.ratio for job in jobs])
    # variables: x[job, slot], the share of the slot in which the job runs at its ideal speed; then each job's
    # completion time
    open_for = np.clip((starts[None, :] + SLOT_MIN - at[:, None]) / SLOT_MIN, 0.0, 1.0)
    each_slot = sparse.eye_array(slots)
    shared = sparse.vstack([sparse.kron(amounts[None, :], each_slot) for amounts in (wants, trainers)])
    shared = sparse.hstack([shared, sparse.coo_array((2 * slots, count))])
    ends = sparse.kron(sparse.eye_array(count), starts[None, :] * SLOT_MIN)
    ends = sparse.hstack([sparse.diags_array(1.0 / minutes) @ ends, -sparse.eye_array(count)])
    done = sparse.kron(sparse.eye_array(count), np.full((1, slots), SLOT_MIN))
    solved = optimize.linprog(
        np.concatenate([np.zeros(count * slots), np.ones(count)]),
        A_ub=sparse.vstack([shared, ends]).tocsr(),
        b_ub=np.concatenate([np.full(slots, float(cores)), np.full(slots, float(gpus)), at - minutes / 2]),
        A_eq=sparse.hstack([done, sparse.coo_array((count, count))]).tocsr(),
        b_eq=minutes,
        bounds=np.concatenate(
            [
                np.stack([np.zeros(count * slots), open_for.reshape(-1)], axis=1),
                np.stack([minutes, np.full(count, np.inf)], axis=1),
            ]
        ),
        method="highs-ipm",
    )
    if not solved.success:
        raise ValueError(f"no bound for {count} jobs: {solved.message}")
    return float(solved.fun) / count


PRICE = 8.9
"""Price of a machine with 8 GPUs relative to a machine without GPUs (section 5.2)."""
VIRTUAL = (
    "in virtual time, by the code that tunes real jobs; that 18 cores feed the GPU is an assumption, that a "
    "trainer needs 3 follows from Fig. 13"
)
LINEAR = (
    "speed assumed linear in cores: 12 of 18 with data workers a GPU, against 8 of 21 in one process; 8 GPUs "
    "then fetch 37 Gb/s, more than a machine's 20"
)
OWN_SPEED = "computed from the paper's speed-up and prices"
PUBLISHED = (
    ("dataworkers", "vs_dataset_split", "002 Fig. 10", "over a split at the data set's end", "1.4-1.6"),
    ("dataworkers", "vs_ideal", "002 Fig. 9", "speed, of ideal", ">= 0.83"),
    ("dataworkers", "overhead_when_cheap", "002 Table 2", "where preprocessing is cheap, time over none", "1-1.127"),
)
FUSED = {
    "a core each": "fused messages over one a tensor, a core for the trainer",
    "half a core": "fused messages over one a tensor, half a core for the trainer",
}
WALK = (
    ("data_workers", "data workers at the end", 3),
    ("data_worker_cpu", "cores of a data worker at the end", 8),
    ("trainer_cpu", "cores of the trainer at the end", 3),
)


def of_one_job(folder: pathlib.Path = BENCHES) -> list[Row]:
    return [
        *ratios(),
        *walked(),
        *_really_walked(folder),
        *costs(),
        *(published_goal(folder, *case) for case in PUBLISHED),
        *_fused(folder),
        *left_out(),
    ]


def ratios() -> list[Row]:
    """Return Fig. 1: the chosen ratios, and the slow-down that they cause with 8 cores per GPU."""
    found = [
        row("002 Fig. 1", f"{model.name}: cores a GPU", NOT_IN_TEXT, [model.ratio], why=f"{model.name}: {model.source}")
        for model in MODELS.values()
    ]
    slowest = max(1 - model.alone(8) for model in MODELS.values())
    linear = "speed is assumed linear in cores; the paper's recommendation models hardly use a second core in "
    "one process"
    return [*found, row("002 Fig. 1", "largest slow-down with 8 cores", "> 0.9", [slowest], why=linear)]


def walked() -> list[Row]:
    """Return Fig. 13 in virtual time."""
    path = walk(MODELS["ResNet18"])
    end = path.end
    least = min(stand.trainer_cpu for stand in path.stands)
    return [
        row("002 Fig. 13", "simulated: data workers at the end", 3, [float(end.data_workers)], why=VIRTUAL),
        row("002 Fig. 13", "simulated: cores of a data worker", 8, [end.data_worker_cpu]),
        row("002 Fig. 13", "simulated: cores of the trainer", 3, [end.trainer_cpu], goal=3, better="lower"),
        row("002 Fig. 13", "simulated: the trainer was tried with", 2, [least]),
        row(
            "002 Fig. 13",
            "simulated: speed over that without data workers",
            NOT_IN_TEXT,
            [end.speed / path.stands[0].speed],
        ),
    ]


def _really_walked(folder: pathlib.Path) -> list[Row]:
    """Return Fig. 13 with real processes, from published results."""
    run = published(folder / "dataworkers-walk.json")
    command = "`springtide bench dataworkers-walk --json`"
    if run is None:
        why = f"run {command} for the walk with real processes; no result is published here"
        return [missing("002 Fig. 13", "real processes", "3 x 8 cores, trainer of 3", why)]
    known = run.get("details", {})
    core = f", where a core is {known['cpu']:g} of the machine's" if "cpu" in known else ""
    why = f"{command} of {run['date']}: real processes in control groups{core}; a job with its own preprocessing"
    found = [
        row("002 Fig. 13", f"real processes: {what}", paper, [float(known[name])], why=why)
        for name, what, paper in WALK
        if name in known
    ]
    for goal in run.get("goals", []):
        if goal.get("value") is not None:
            found.append(goal_row("002 Fig. 13", f"real processes: {goal['id']}", NOT_IN_TEXT, goal, why))
    return found


def _fused(folder: pathlib.Path) -> list[Row]:
    """Return Fig. 12 from published results: with one core for the trainer, and with half a core."""
    run, command = published(folder / "transfer.json"), "`springtide bench transfer --json`"
    gains = (run or {}).get("details", {}).get("fused_vs_singly", {})
    if run is None or not gains:
        why = f"run {command} to measure it; no result is published here"
        return [missing("002 Fig. 12", "fused messages over one a tensor", "1.25-1.3", why)]
    why = f"{command} of {run['date']}: 141 tensors, really trained and sent"
    paper = {"a core each": 1.25, "half a core": 1.3}
    return [
        row("002 Fig. 12", what, paper[name], [float(gains[name])], why=why)
        for name, what in FUSED.items()
        if name in gains
    ]


def costs() -> list[Row]:
    """Return Tables 3 and 4: savings computed from the paper's speed-ups, and ResNet18's speed-up from the ratios."""
    found = []
    for name, machines, faster, paper in (("ResNet18", 1, 1.2, 0.09), ("DeepFM", 4, 12.1, 0.88)):
        saved = 1 - (1 + machines / PRICE) / faster
        found.append(
            row("002 Table 3", f"{name}: cost saved, {machines} extra CPU machines", paper, [saved], why=OWN_SPEED)
        )
    model = MODELS["ResNet18"]
    found.append(
        row("002 Table 3", "ResNet18: speed-up by linear cores", 1.2, [model.fed(12) / model.alone(8)], why=LINEAR)
    )
    for kind, extra, faster, paper in (
        ("single", 1, 0.74, -0.70),
        ("single", 2, 1.13, -0.33),
        ("single", 4, 1.43, -0.40),
        ("multi", 1, 1.43, 0.13),
        ("multi", 2, 1.43, -0.049),
        ("multi", 4, 1.43, -0.40),
    ):
        saved = 1 - (4 + extra) / 4 / faster
        found.append(row("002 Table 4", f"{kind}-stage, 4 + {extra} GPUs: cost saved", paper, [saved], why=OWN_SPEED))
    return found


def left_out() -> list[Row]:
    return [
        missing("002 Fig. 3", "machines with free GPUs and no free cores", 0.31, "a production trace of 5,600 GPUs"),
        missing("002 Fig. 4", "of queueing, for want of cores", 0.392, "a production trace of 5,600 GPUs"),
        missing("002 Fig. 11", "Production, GPU stage: speed-up", 1.43, "a model of a customer, on 4 A10 GPUs"),
    ]
