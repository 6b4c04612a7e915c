"""Fig. 13 of GoldMiner with real processes: a job's data workers are tuned, decision by decision, on this machine.

In: a trainer and data workers in control groups (walk/crew.py), with preprocessing of click logs as their load. The
tuner is a job's own (`planning.dataworkers.tuning.tuner`), with a shorter interval. Out: the walk, step by
step, a picture of it, and the final speed against that of a trainer that never waits for data (`walk_vs_ideal`).
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from springtide.domain.data.data_workers import FeedRules
from springtide.planning.dataworkers.tuning import observation, tuner
from springtide.planning.dataworkers.tuning.tuner_state import Phase
from springtide.platforms.local import cgroups
from springtide_lab.bench import Options
from springtide_lab.bench.core import progress, report
from springtide_lab.bench.dataworkers.walk import clicks, picture
from springtide_lab.bench.dataworkers.walk.picture import Taken
from springtide_lab.bench.dataworkers.walk.processes import CPU, Company, Crew

TRAINER_CPU = 8.0
CPUS = 40.0
"""8 for the trainer as in the paper, and four times as many for data workers."""
WORKERS_NEEDED = 2.7
"""Data workers of 8 CPUs that the device is as fast as: between two and three, as the paper's ResNet18 took three."""
EVERY_S = 3.5
"""Between decisions, instead of 30: the whole walk takes a minute."""
MOST_STEPS = 24
LEAST = 0.9


def bench(options: Options) -> report.Result:
    """One walk from the baseline to the end of tuning."""
    if why := cgroups.why_not():
        return _not_measured(f"needs CPU quotas: {why}")
    every_s = 1.5 if options.quick else EVERY_S
    batch_s = cost()
    step_s = batch_s / (WORKERS_NEEDED * TRAINER_CPU * CPU)
    with Crew(step_s=step_s, trainer_cpu=TRAINER_CPU, cpus=CPUS) as crew:
        taken = walk(crew, every_s, most=6 if options.quick else MOST_STEPS)
    drawn = options.folder / "dataworkers-walk.png"
    picture.draw(taken, drawn)
    last, first = taken[-1], taken[0]
    best = ideal(taken)
    return report.Result(
        goals=(
            report.goal(
                "walk_vs_ideal", best and last.steps_per_s / best, target=LEAST, why="" if best else "never well fed"
            ),
        ),
        rounds=1,
        columns=("s", "data workers", "CPUs each", "trainer's CPUs", "steps/s", "waits"),
        rows=tuple(
            (f"{one.at:.0f}", float(one.workers), one.worker_cpu, one.trainer_cpu, one.steps_per_s, f"{one.waits:.0%}")
            for one in taken
        ),
        notes=(
            f"without data workers {first.steps_per_s:.0f} steps/s, in the end {last.steps_per_s:.0f}, "
            f"{last.steps_per_s / first.steps_per_s:.2f} times as many; a trainer with all its CPUs "
            f"that never waits for data would do {best or 0.0:.0f}, the device alone {1 / step_s:.0f}",
            f"a CPU is {CPU:g} of a core; a batch of {clicks.BATCH} clicks costs {1e3 * batch_s:.1f} ms of a core; "
            f"the device is a wait of {1e3 * step_s:.1f} ms a step, so that {WORKERS_NEEDED:g} data workers of "
            f"{TRAINER_CPU:g} CPUs would just feed it",
            *(f"{one.at:.0f} s: {one.why}" for one in taken),
            f"picture: {drawn}",
        ),
        details={
            "walk": [one._asdict() for one in taken], "every_s": every_s, "cpu": CPU, "batch_s": batch_s,
            "step_s": step_s, "data_workers": last.workers, "data_worker_cpu": last.worker_cpu,
            "trainer_cpu": last.trainer_cpu, "vs_baseline": last.steps_per_s / first.steps_per_s,
            "paper": "1 to 8 CPUs a data worker, 3 data workers, trainer 8 to 2 and back to 3 CPUs",
        },
    )  # fmt: skip


def walk(crew: Company, every_s: float, *, most: int, say: Callable[[str], None] = progress.say) -> list[Taken]:
    """Decide, carry out, wait, look; until the tuner is content."""
    tuning = tuner.begin(FeedRules(every_s=every_s))
    began, taken, content = time.monotonic(), list[Taken](), False
    while len(taken) < most and not content:
        time.sleep(observation.WARM_UP * every_s)
        crew.mark()
        since = time.monotonic()
        time.sleep((1.0 - observation.WARM_UP) * every_s)
        at = time.monotonic()
        cores = crew.cores()
        seen = observation.see({"trainer": crew.words()}, cores, at=at, since=since)
        if seen is None:
            continue
        tuning, target = tuner.decide(tuning, seen)
        changed = crew.carry_out(target)
        content = not changed and tuning.phase in (Phase.STEADY, Phase.OFF)
        one = Taken.of(seen, at=at - began, phase=tuning.phase.value, why=target.why)
        say(f"{one.at:5.0f} s  {one.workers} x {one.worker_cpu:g}, trainer {one.trainer_cpu:g}: {target.why}")
        taken.append(one)
    return taken


def ideal(taken: Sequence[Taken]) -> float | None:
    """Steps a second of the trainer with all its CPUs, had it never waited: as measured while it waited little."""
    fed = [one.capable_per_s for one in taken if one.workers and one.trainer_cpu == TRAINER_CPU and one.waits < 0.2]
    return max(fed, default=None)


def cost(times: int = 30) -> float:
    """Seconds of a core to make a mini-batch."""
    make = clicks.Clicks()
    indices = np.arange(clicks.BATCH, dtype=np.int64)
    make(indices)
    began = time.process_time()
    for turn in range(times):
        make(indices + turn * clicks.BATCH)
    return (time.process_time() - began) / times


def _not_measured(why: str) -> report.Result:
    goal = report.goal("walk_vs_ideal", None, target=LEAST, why=why)
    return report.Result(goals=(goal,), rounds=0, columns=("step",), rows=(), notes=(why,))
