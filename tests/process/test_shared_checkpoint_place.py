"""Two jobs of one name sharing a checkpoint place: one is refused at its start, the other loses nothing."""

import numpy as np
import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

BATCH = 32


class StartedJob:
    """A job in its own folder with a checkpoint place that another job shares."""

    def __init__(self, folder, seed, rules):
        folder.mkdir()
        self.folder, self.ids = folder, counting.draw(np.random.default_rng(seed), 150 * BATCH - 5)
        spec = JobSpec(
            name="counts",
            workers=1,
            servers=2,
            heartbeat_s=0.2,
            relaunches=1000,
            backoff_s=0.0,
            slots=64,
            seed=seed,
            checkpoints=rules,
        )
        script = counting.write(folder, self.ids)
        self.job = LocalCluster(script, [folder, 1, BATCH, 0.1], spec=spec, folder=folder / "runs")

    @property
    def decided(self):
        """Whether it is refused, or saves."""
        return self.job.over or bool(self.job.status.checkpoints.number)

    def differences(self):
        return counting.differences(self.folder, self.ids, epochs=1, batch=BATCH)


@pytest.mark.parametrize("shared", ["folder", pytest.param("url", marks=pytest.mark.soak)])
def test_one_of_two_jobs_sharing_a_checkpoint_place_is_refused_and_one_is_exact(tmp_path, shared):
    place = tmp_path / "shared"
    rules = CheckpointRules(every_s=0.3, folder=str(place))
    if shared == "url":
        rules = CheckpointRules(every_s=0.3, url=f"file://{place}", upload_every_s=0.3)
    both = [StartedJob(tmp_path / f"{number}", number, rules) for number in (1, 2)]
    with both[0].job, both[1].job:
        for one in both:
            one.job.until(lambda _, one=one: one.decided)
        refused = [one for one in both if one.job.over]
        (owner,) = [one for one in both if not one.job.over]
        with pytest.raises(errors.BadInput, match=rf"{place}.* belongs to run .* of job 'counts'"):
            refused[0].job.wait()
        owner.job.until(lambda status: status.samples > 5 * BATCH)
        assert owner.job.kill("server-1")
        owner.job.until(
            lambda _: any(event["event"] == "ready" and event.get("checkpoint") for event in owner.job.story)
        )
        counting.hurry(owner.folder)
        status = owner.job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == len(owner.ids), status
    assert not (wrong := owner.differences()), wrong
    kept = place / "counts" if shared == "folder" else place
    (claim,) = claims.all_of(FolderStore(kept)).values()
    assert {checkpoint_io.read(str(kept), number).run for number in checkpoint_io.numbers(FolderStore(kept))} == {
        claim.run
    }
