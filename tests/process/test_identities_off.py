"""Without identities, killed workers repeat batches: this shows that the counting oracle can fail."""

import numpy as np
import pytest

from springtide.domain.spec.job_spec import JobPhase
from springtide.testing.cluster import LocalCluster
from tests.process import counting, test_faults
from tests.process.fault_injector import FaultInjector, FaultPlan

pytestmark = [pytest.mark.process, pytest.mark.soak]


# test_faults kills workers of the same job with names and counts exactly
NAMED = pytest.param(True, marks=pytest.mark.soak)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("identities", [NAMED, False])
def test_killed_workers_repeat_batches_only_with_identities_off(tmp_path, identities):
    """This shows that the oracle can fail and that identities prevent it."""
    ids = counting.draw(np.random.default_rng(1), 900 * test_faults.BATCH - 5)
    script = counting.write(tmp_path, ids)
    script.write_text(counting.SCRIPT.replace("st.join()", f"st.join(identities={identities})"))
    plan = FaultPlan(seed=1, silence_s=test_faults.SILENCE_S, pause_s=(0.5, 2.0), kinds={"kill workers": 1})
    arguments = [tmp_path, 1, test_faults.BATCH, 0.005]
    with LocalCluster(script, arguments, spec=test_faults.spec(seed=1), folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 0)
        done = FaultInjector(plan, job).run(at_most=6)
        assert job.wait().phase is JobPhase.FINISHED
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=test_faults.BATCH)
    print(done, f"off by {len(wrong)} rows")
    assert bool(wrong) is not identities, (done, wrong)
    assert all(extra > 0 for extra in wrong.values()), "without names batches are repeated, not lost"
