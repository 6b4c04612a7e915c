"""Long random histories of whole jobs in virtual time: the job, its faults and its end.

Everything but machines, network and time is real: master, ledger, leases, slots, checkpoints. The seed determines the
whole history.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, fields, replace

from springtide import errors
from springtide.domain.core import shape as shapes
from springtide.domain.core.shape import Shape
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.spec.planning_config import PlanningConfig, PlanRules
from springtide.sim.world import parameters, workload
from springtide_lab.reproduce.dlrover_rm.testbed import WORLD
from tests.virtual_jobs import virtual_loop
from tests.virtual_jobs.faults import FaultBounds, FaultRates, JobFaults
from tests.virtual_jobs.job import Setup, VirtualJob, VirtualOutcome
from tests.virtual_jobs.master_connection import Weather
from tests.virtual_jobs.network import DataWeather
from tests.virtual_jobs.server import Disks

MODEL = parameters.MODELS["widedeep"]
LONGEST_S = 4_000.0  # the slowest of 400 took 2,125
USUAL = FaultRates(
    kill_worker=60,
    kill_server=60,
    kill_master=40,
    evict=30,
    cut_off=60,
    slow_worker=60,
    slow_server=40,
    full_memory=15,
    scale_workers=60,
    scale_servers=60,
)


@dataclass(frozen=True)
class History:
    """What happened, and how it ended."""

    outcome: VirtualOutcome
    happened: Counter


def setup_of(chance: random.Random, seed: int, *, batches: tuple[int, int]) -> Setup:
    """Return a small job and its rates of faults."""
    shape = replace(MODEL.tuned, workers=chance.randint(1, 5), servers=chance.randint(1, 4))
    job = workload.one(WORLD, MODEL, requested=shape, steps=chance.randint(*batches))
    return Setup(
        job=job,
        shape=shape,
        seed=seed,
        stride_s=chance.choice([0.0, 0.3, 1.0]),
        relaunches=10**6,
        save_every_s=chance.choice([5.0, 20.0, 60.0]),
        planning=planning_of(chance),
        weather=Weather(late_s=chance.choice([0.001, 0.02, 0.2]), lost=chance.choice([0.0, 0.01, 0.05])),
        data_weather=DataWeather(
            late_s=chance.choice([0.0, 0.01, 0.3]),
            twice=chance.choice([0.0, 0.05]),
            later_s=chance.choice([1.0, 30.0, 100.0]),
            broken=chance.choice([0.0, 0.1]),
        ),
        disks=Disks(
            save_s=chance.choice([0.1, 2.0, 8.0]),
            restore_s=chance.choice([0.1, 3.0]),
            move_s=chance.choice([0.01, 0.3]),
            freeze_s=chance.choice([0.001, 0.2]),
        ),
    )


class Whims:
    """A planner that gives random advice: valid, invalid, late, or none."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def advise(self, view, *, epoch, now):
        """Return mostly another shape, and sometimes advice that no master should follow."""
        kind = self._chance.choice(
            ["shape"] * 6 + ["nothing", "stale", "wrong job", "huge", "garbage", "raise", "late"]
        )
        if kind == "late":
            await asyncio.sleep(self._chance.uniform(0.0, 60.0))
        if kind == "raise":
            raise errors.TemporaryError("not now")
        if kind == "garbage":
            return {"plan": "yes"}
        most = 10**4 if kind == "huge" else 6
        shape = Shape(
            workers=self._chance.randint(1, most),
            servers=self._chance.randint(1, 4),
            worker_cpu=self._chance.choice([1.0, 2.0, 4.0]),
            server_cpu=self._chance.choice([2.0, 8.0, 16.0]),
        )
        plan = ShapePlan(job="another" if kind == "wrong job" else view.name, shape=shape, reason="a whim")
        stale = epoch - 1 if kind == "stale" else epoch
        return Advice(epoch=stale, why="a whim", plan=None if kind == "nothing" else plan)

    async def conclude(self, past):
        """Do nothing, because this planner keeps no history."""

    async def close(self):
        """Do nothing, because nothing is open."""


def planning_of(chance: random.Random) -> PlanRules:
    """Let half of the jobs plan for themselves, with short intervals."""
    if chance.random() < 0.5:
        return PlanRules()
    least = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=2.0)
    most = Shape(workers=8, servers=4, worker_cpu=8.0, server_cpu=32.0)
    return PlanRules(
        bounds=shapes.ShapeBounds(least=least, most=most, quota=shapes.ResourceBudget(cpu=200.0, memory=2.0**50)),
        every_s=1.0,
        settle_s=0.5,
        window_s=1.0,
        config=PlanningConfig(between_changes_s=3.0, exact_seconds=0.0),
    )


def rates_of(chance: random.Random) -> FaultRates:
    """Draw the rates of faults; some kinds never occur."""
    factor = chance.choice([0.3, 1.0, 3.0])
    return FaultRates(
        **{each.name: factor * getattr(USUAL, each.name) * chance.choice([0, 1, 1]) for each in fields(USUAL)}
    )


def tell(seed: int, folder, *, batches: tuple[int, int] = (60, 400)) -> History:
    """Run the history of this seed; a job that does not end is an error."""
    chance = random.Random(seed)
    setup, rates = setup_of(chance, seed, batches=batches), rates_of(chance)
    bounds = FaultBounds(until_s=chance.choice([60.0, 200.0]))

    async def live() -> History:
        job = VirtualJob(setup, folder, Whims(random.Random(seed + 2)) if setup.planning.on else None)
        faults = JobFaults(job, rates, bounds, seed + 1)
        wrong = asyncio.create_task(faults.run())
        async with asyncio.timeout(LONGEST_S):
            outcome = await job.run()
        wrong.cancel()
        return History(outcome, faults.done)

    return virtual_loop.run(live())
