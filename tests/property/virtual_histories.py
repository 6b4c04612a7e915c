"""One random history of a whole job in virtual time: what it is, what goes wrong with it, how it ends.

Everything but machines, network and time is real: master, ledger, leases, slots, checkpoints. A seed says it all.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, fields, replace

from springtide.sim import models, parameters, workload
from springtide.sim.jobs import loop
from springtide.sim.jobs.faults import Bounds, Faults, Rates
from springtide.sim.jobs.job import Outcome, Setup, VirtualJob
from springtide.sim.jobs.network import DataWeather
from springtide.sim.jobs.server import Disks
from springtide.sim.jobs.wire import Weather

MODEL = models.MODELS["widedeep"]
LONGEST_S = 20_000.0
USUAL = Rates(
    kill_worker=60, kill_server=60, kill_master=40, evict=30, cut_off=60, slow_worker=60, slow_server=40,
    full_memory=15, scale_workers=60, scale_servers=60,
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """What happened, and how it ended."""

    outcome: Outcome
    happened: Counter


def setup_of(chance: random.Random, seed: int, *, batches: tuple[int, int]) -> Setup:
    """A small job in some weather."""
    shape = replace(MODEL.tuned, workers=chance.randint(1, 5), servers=chance.randint(1, 4))
    job = workload.one(parameters.testbed(), MODEL, requested=shape, steps=chance.randint(*batches))
    return Setup(
        job=job, shape=shape, seed=seed, stride_s=chance.choice([0.0, 0.3, 1.0]), relaunches=10**6,
        save_every_s=chance.choice([5.0, 20.0, 60.0]),
        weather=Weather(late_s=chance.choice([0.001, 0.02, 0.2]), lost=chance.choice([0.0, 0.01, 0.05])),
        data_weather=DataWeather(
            late_s=chance.choice([0.0, 0.01, 0.3]), twice=chance.choice([0.0, 0.05]),
            later_s=chance.choice([1.0, 30.0, 100.0]),
        ),
        disks=Disks(
            save_s=chance.choice([0.1, 2.0, 8.0]), restore_s=chance.choice([0.1, 3.0]),
            move_s=chance.choice([0.01, 0.3]), freeze_s=chance.choice([0.001, 0.2]),
        ),
    )  # fmt: skip


def rates_of(chance: random.Random) -> Rates:
    """Some kinds of trouble not at all, the others more or less often."""
    factor = chance.choice([0.3, 1.0, 3.0])
    return Rates(**{each.name: factor * getattr(USUAL, each.name) * chance.choice([0, 1, 1]) for each in fields(USUAL)})


def tell(seed: int, folder, *, batches: tuple[int, int] = (60, 600)) -> History:
    """The history of this seed; a job that does not end is an error."""
    chance = random.Random(seed)
    setup, rates = setup_of(chance, seed, batches=batches), rates_of(chance)
    bounds = Bounds(until_s=chance.choice([60.0, 200.0]))

    async def live() -> History:
        job = VirtualJob(setup, folder)
        faults = Faults(job, rates, bounds, seed + 1)
        wrong = asyncio.create_task(faults.run())
        async with asyncio.timeout(LONGEST_S):
            outcome = await job.run()
        wrong.cancel()
        return History(outcome, faults.done)

    return loop.run(live())
