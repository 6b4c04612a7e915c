"""The rate simulator agrees with the detailed one (real code) on calm jobs."""

import asyncio
import logging
from dataclasses import replace

import pytest

from springtide.planning.policy import registry
from springtide.sim.engine import systems
from springtide.sim.engine.simulation import Simulation
from springtide.sim.world import parameters, workload
from springtide.sim.world.world import JobFaults
from springtide_lab.reproduce.dlrover_rm.testbed import WORLD
from tests.virtual_jobs import fleet, virtual_loop
from tests.virtual_jobs.faults import Luck
from tests.virtual_jobs.job import Setup, VirtualJob

STARTS_S = WORLD.pods.launch_s + WORLD.pods.init_s
STEPS = 10_000


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def job_of(name, **faults):
    model = parameters.MODELS[name]
    shape = replace(model.tuned, workers=6, servers=3)
    return replace(workload.one(WORLD, model, requested=shape, steps=STEPS), faults=JobFaults(**faults))


def in_rates(job, **mechanisms):
    """Seconds by the rate model: the shape that was asked for, and stays."""
    system = systems.System(
        name="static", policy=registry.load("static"), mechanisms=systems.Mechanisms(**mechanisms), again_s=1e9
    )
    return Simulation(WORLD, [job], system).run().outcomes[-1].jct_s


def in_detail(job, folder):
    """How the job ends on virtual machines, with its own luck."""

    async def live():
        setup = Setup(
            job=job,
            shape=job.requested,
            seed=1,
            heartbeat_s=2.0,
            stride_s=1.0,
            starts_s=lambda wanted, chance: STARTS_S,
        )
        virtual = VirtualJob(setup, folder)
        wrong = asyncio.create_task(Luck(virtual, WORLD, virtual.chance).run())
        outcome = await virtual.run()
        wrong.cancel()
        return outcome

    return virtual_loop.run(live())


@pytest.mark.parametrize("name", ["widedeep", "xdeepfm"])
def test_calm_job_takes_as_long_as_the_rate_model_predicts(name, tmp_path):
    job = job_of(name)
    outcome, foretold = in_detail(job, tmp_path), in_rates(job)
    assert outcome.right and outcome.relaunches == 0
    assert foretold < outcome.jct_s < 1.05 * foretold, f"{outcome.jct_s:.0f} s, foretold {foretold:.0f} s"


def test_straggler_costs_what_the_rate_model_predicts(tmp_path):
    job = job_of("widedeep", straggles_at=0.2, straggler_speed=0.1)
    outcome, foretold = in_detail(job, tmp_path), in_rates(job, relieves=False)
    assert outcome.right
    assert outcome.jct_s == pytest.approx(foretold, rel=0.06)
    assert in_rates(job, relieves=False, dynamic_shards=False) > 1.2 * outcome.jct_s, "equal parts would do as well"
    assert any("leases" in line["what"] for _, kind, line in outcome.story if kind == "decision")


def test_slow_server_is_replaced_by_the_guards_of_the_real_master(tmp_path):
    job = job_of("widedeep", slow_server_at=0.2, server_speed=0.03)
    outcome = in_detail(job, tmp_path)
    assert outcome.right and outcome.moved > 0
    assert any(line["what"].startswith("replace server-") for _, kind, line in outcome.story if kind == "decision")
    assert outcome.jct_s < in_rates(job, relieves=False)


def test_masters_plan_by_a_policy_and_carry_plans_out(tmp_path):
    jobs = [replace(job_of("widedeep"), name=f"job-{number}", arrives_at=60.0 * number) for number in range(2)]
    system = systems.system("springtide", registry.load("springtide"))

    async def live():
        return await fleet.FleetRun(WORLD, jobs, system, tmp_path).run()

    found = virtual_loop.run(live())
    assert [outcome.right for outcome in found.outcomes] == [True, True]
    assert found.plans["done"] >= 2, "each begins small, and grows when it was measured"
    decided = [line["what"] for _, kind, line in found.outcomes[0].story if kind == "decision"]
    assert any(what.startswith("scale from 1 to") for what in decided)
