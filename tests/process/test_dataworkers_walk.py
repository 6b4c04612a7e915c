"""The tuning walk of data workers with real processes, shortened."""

import pytest

from springtide.platforms.local import process_group
from springtide_lab.bench.dataworkers import dataworkers_walk
from springtide_lab.bench.dataworkers.dataworkers_walk import WalkProcesses

pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.mark.skipif(bool(process_group.why_not()), reason="no CPU quotas here")
def test_data_worker_with_more_cpus_makes_more_batches() -> None:
    with WalkProcesses(step_s=0.005, trainer_cpu=8.0, cpus=40.0) as crew:
        taken = dataworkers_walk.walk(crew, 3.0, most=5)
    alone, *fed = (one.seen for one in taken)
    assert alone.last.workers == 0 and alone.steps_per_s > 0
    assert fed[-1].last.cpu >= 3.0
    assert fed[-1].steps_per_s > 1.5 * fed[0].steps_per_s
