"""Pure. What nobody can do better with the cores and GPUs that there are, who knows all jobs beforehand.

In: jobs and a `Preset`. Out: minutes, below which no mean JCT can be. A linear program over slots of time: in each,
jobs that have come run at up to their ideal speed, share all cores and GPUs as if they were in one machine, and change
speeds at no cost. A job that has its minutes in the mean at M ends no earlier than M and half its minutes; work of a
slot counts as done when the slot begins. All of this only helps, so real schedules do worse. Next: `rows`.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, sparse

from springtide_lab.reproduce.goldminer.simulation.trace import Job, TracePreset

SLOT_MIN = 10.0


def least_jct(jobs: Sequence[Job], preset: TracePreset) -> float:
    cores, gpus = preset.machines * preset.cpus, preset.machines * preset.gpus
    work = sum(job.minutes * job.gpus * job.model.ratio for job in jobs)
    horizon = max(job.at for job in jobs) + work / cores + 2 * max(job.minutes for job in jobs)
    slots, count = math.ceil(horizon / SLOT_MIN) + 1, len(jobs)
    starts = SLOT_MIN * np.arange(slots)
    at, minutes, trainers = (np.array([getattr(job, name) for job in jobs]) for name in ("at", "minutes", "gpus"))
    wants = np.array([job.gpus * job.model.ratio for job in jobs])
    # x[job, slot]: of the slot, the part that the job would run at its ideal speed; then each job's JCT
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
