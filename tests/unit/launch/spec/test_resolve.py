"""Resolve a user's spec into a plan that an agent can carry out."""

import pathlib
from dataclasses import replace

import pytest

from springtide import errors
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec.elastic_job import (
    CheckpointWish,
    ElasticJob,
    FollowingWish,
    PatienceWish,
    Quota,
    RoleWish,
    TableWish,
)
from springtide.launch.spec import resolve as resolver

GIB = 2.0**30
CLUSTER = PlatformCapacity(cpu=32.0, memory=64 * GIB, node_cpu=8.0, node_memory=16 * GIB)


def resolve(capacity=CLUSTER, code=None, **spec):
    return resolver.resolve(ElasticJob(**{"script": "train.py", **spec}), capacity, code=code)


def test_spec_needs_only_a_script():
    plan = resolve(script="models/Train_CTR.py")
    assert plan.spec.name == "train_ctr" and plan.script == "models/Train_CTR.py"
    assert plan.spec.planning.on and plan.spec.planning.bounds.quota.cpu == 32.0
    assert plan.spec.checkpoints.every_s == 30.0 and plan.spec.feeding.cores == 32.0


def test_plan_has_the_values_of_the_spec():
    plan = resolve(
        name="ctr",
        arguments=("--epochs", "3"),
        environment={"KEY": "x"},
        data={"train": "s3://clicks"},
        tables={"user": TableWish(ttl=5)},
        workers=RoleWish(count=2, cpu=1.0, memory="2G"),
        servers=RoleWish(count=3, memory="4Gi"),
        data_workers="2",
        poison="skip",
        quota=Quota(cpu=12.0),
        sync="bsp",
        cache="10%",
        seed=7,
        recovery="partial",
        relaunches=2,
        patience=PatienceWish(join_s=60, grace_s=5),
        guards=False,
        stragglers={"window": 9},
        checkpoints=CheckpointWish(every_s=5, url="s3://keep/"),
        following=FollowingWish(slo_lag="5m"),
    )
    spec = plan.spec
    assert (spec.workers, spec.servers, spec.worker_cpu, spec.worker_memory) == (2, 3, 1.0, 2 << 30)
    assert (spec.server_memory, spec.sync, spec.seed, spec.recovery, spec.relaunches) == (
        4 << 30,
        "bsp",
        7,
        "partial",
        2,
    )
    assert (spec.join_s, plan.grace_s, spec.stragglers.window_s, spec.guards.memory) == (60, 5, 9, False)
    assert (spec.checkpoints.every_s, spec.checkpoints.url, spec.cache.share) == (5, "s3://keep", 0.1)
    assert (spec.feeding.workers, spec.feeding.poison, spec.feeding.cores) == (2, "skip", 12.0)
    assert spec.online.rules.slo_lag_s == 300 and plan.environment == {"KEY": "x"}
    assert plan.settings == {"data": '{"train": "s3://clicks"}', "tables": '{"user": {"ttl": 5}}'}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"workers": RoleWish(cpu=9.0)}, "the largest node has 8 cores"),
        ({"data_worker_cpu": 9.0}, "dataWorkerCpu 9 .*the largest node has 8 cores"),
        ({"following": FollowingWish(export_to="x")}, "on clusters, no process exports beside the job"),
        ({"stragglers": {"windows": 3}}, "Did you mean 'window_s'"),
        ({"stragglers": {"deviations": -1}}, "straggler rule deviations -1: must be above 0"),
        ({"stragglers": {"window": "long"}}, "--straggler window_s: got 'long', expected a number"),
        ({"cache": "lots"}, "cache 'lots'"),
        ({"allocation": "laja"}, "Did you mean 'laia'"),
        ({"resume": "nowhere"}, "nowhere: no usable checkpoint there"),
        ({"continue_from": "nowhere"}, "nowhere: no usable checkpoint there"),
        ({"resume": "a", "continue_from": "b"}, "--resume. and continueFrom b .--continue-from.: give one"),
    ],
)
def test_impossible_spec_values_are_refused(spec, said):
    with pytest.raises(errors.UserError, match=said):
        resolve(**spec)


def test_script_is_looked_up_in_the_code_folder(tmp_path):
    (tmp_path / "train.py").write_text("")
    assert resolve(code=tmp_path).script == "train.py"
    with pytest.raises(errors.MissingFile, match=f"Did you mean {tmp_path}/train.py"):
        resolve(code=tmp_path, script="trian.py")


def test_job_is_named_after_its_script(tmp_path):
    assert resolver.name_of(tmp_path / "Train_DLRM v2.py") == "train_dlrm-v2"
    assert resolver.name_of(tmp_path / "---.py") == "job"


def test_spec_file_or_folder_as_script_is_refused(tmp_path):
    (tmp_path / "job.yaml").touch()
    with pytest.raises(errors.BadInput, match=r"not a training script; run it with: springtide submit .*/job\.yaml"):
        resolver.find_script(tmp_path / "job.yaml")
    with pytest.raises(FileNotFoundError, match="is a directory; give the training script in it"):
        resolver.find_script(pathlib.Path(tmp_path))


def test_job_resolved_twice_is_the_same_to_a_brain():
    job = ElasticJob(script="train.py")
    keys = [
        resolver.resolve(job, CLUSTER, code=None, key=key).spec.planning.adviser.key
        for key in ("uid-1", "uid-1", "", "")
    ]
    assert keys[0] == keys[1] == "uid-1" and keys[2] != keys[3]


def test_gpus_bound_a_local_job_and_implicit_sharing_is_reported(tmp_path):
    machine = replace(CLUSTER, own=True, gpus=2)
    (tmp_path / "train.py").touch()

    def plan(said=None, **fields):
        job = ElasticJob(script="train.py", **fields)
        return resolver.resolve(job, machine, code=tmp_path, say=(said if said is not None else []).append).spec

    asked = plan(quota=Quota(gpu=2), sync="bsp")
    assert (asked.worker_gpu, asked.gpus, asked.workers, asked.most_gpu_workers) == (1.0, 2, 2, 2)
    assert plan(quota=Quota(gpu=2)).planning.bounds.most.workers == 2
    assert plan(workers=RoleWish(gpu=0.5)).online.rules.most == 4
    assert plan(quota=Quota(gpu=0)).worker_gpu == 0.0
    said = []
    shared = plan(said, workers=RoleWish(count=3), servers=RoleWish(count=1))
    assert (shared.worker_gpu, shared.gpus, shared.most_gpu_workers) == (None, 2, None)
    assert said == ["3 workers share 2 GPUs; --gpus 2 gives each worker its own, --gpus 0 gives none"]
