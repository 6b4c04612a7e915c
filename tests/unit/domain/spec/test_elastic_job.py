import pytest

from springtide import errors
from springtide.domain.spec.elastic_job import ElasticJob, PatienceWish, Quota, RoleWish


def test_job_needs_only_a_script():
    job = ElasticJob(script="train.py")
    assert job.workers == RoleWish() and job.quota.cpu is None


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"count": 0}, "count 0"),
        ({"count": 2, "max": 3}, "beside min, max or start"),
        ({"min": 3, "max": 2}, "min 3: must not be above max, 2"),
        ({"start": 4, "max": 2}, "start 4: must be a number from 1 to 2"),
    ],
)
def test_contradictory_numbers_are_refused(wish, said):
    with pytest.raises(errors.BadInput, match=said):
        RoleWish(**wish)


def test_job_without_a_script_is_refused():
    with pytest.raises(errors.BadInput, match="script"):
        ElasticJob(script="")


@pytest.mark.parametrize("seed", [-1, 2**63, 10**22])
def test_seed_out_of_range_is_refused(seed):
    with pytest.raises(errors.BadInput, match=f"seed={seed}: expected a whole number from 0 to"):
        ElasticJob(script="train.py", seed=seed)


def test_silence_shorter_than_two_heartbeats_is_refused():
    with pytest.raises(errors.BadInput, match=r"silence_s 5 .* heartbeat_s 20 .* lost between two heartbeats"):
        PatienceWish(silence_s=5.0, heartbeat_s=20.0)
    PatienceWish(silence_s=2.0, heartbeat_s=1.0)


def test_only_workers_may_have_a_gpu_and_at_most_one_each():
    with pytest.raises(errors.BadInput, match="servers keep rows in CPU memory and use no GPU; give workers"):
        ElasticJob(script="a.py", servers=RoleWish(gpu=1))
    for wrong in (2, -1, 0.001, float("nan")):
        with pytest.raises(errors.BadInput, match="a worker trains on one GPU; give 1, 0 for none, or a share"):
            RoleWish(gpu=wrong)
    with pytest.raises(errors.BadInput, match="gpu -1: must be GPUs of the whole job, 0 or more"):
        Quota(gpu=-1)
