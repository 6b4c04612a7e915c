"""The size of an unchanging job settles despite noisy measurements."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import registry
from springtide.sim.engine import systems
from springtide.sim.engine.simulation import Simulation
from springtide.sim.world import workload
from springtide.sim.world.parameters import MODELS
from springtide_lab.reproduce.dlrover_rm import testbed

MOST_CHANGES = 4


@pytest.mark.parametrize(("noise", "seed"), [(0.05, 1), (0.2, 0), (0.2, 2)])
def test_size_of_a_steady_job_settles_within_its_quota(noise, seed):
    model = MODELS["dcn" if seed % 2 else "widedeep"]
    random = np.random.default_rng([seed, 77])
    job = workload.jittered(testbed.job_of(model, seed), random, testbed.WORLD.jobs.family_spread)
    job = replace(job, samples=5 * job.samples)
    asked = []

    def policy(view, config):
        decision = registry.load("springtide")(view, config)
        asked.extend(plan.shape for plan in decision.plans)
        return decision

    system = systems.System(name="springtide", policy=policy, every_s=60.0, again_s=60.0, rarely=0.0)
    world = testbed.WORLD.changed(noise=noise)
    story = Simulation(world, [job], system, config=PlanningConfig(exact_seconds=0.0)).run()
    (outcome,) = story.outcomes
    assert story.decisions > 40  # it was asked all the time
    assert outcome.tally.changes <= MOST_CHANGES
    assert story.reasons[-1][0] < 0.5 * outcome.jct_s, story.reasons
    assert all(shape.cpu <= testbed.WORLD.size.job_cpu * (1 + 1e-9) for shape in asked)
