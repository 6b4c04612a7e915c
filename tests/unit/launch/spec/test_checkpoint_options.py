"""Checkpoint options of a job, and which checkpoint it resumes."""

import pytest

from springtide import errors
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob
from springtide.launch.spec import resolve
from tests.unit.checkpoint import stores


def test_damaged_checkpoint_is_reported_and_the_previous_resumed(tmp_path):
    store, told = stores.store(), []
    for number in (1, 2):
        stores.train(store, range(10))
        stores.publish(tmp_path, number, stores.save(store, tmp_path, number))
    path = tmp_path / "server-0.0-000002.run1.seg"
    path.write_bytes(path.read_bytes()[:-3])
    found = resolve.find_checkpoint(str(tmp_path), told.append)
    assert found.number == 1
    said = " ".join(told)
    assert "checkpoint 2" in said and "torn" in said and "continuing from checkpoint 1" in said
    rules = resolve.checkpoint_rules(CheckpointWish(), resume=str(tmp_path), resumed=found)
    assert (rules.resume, rules.resume_number, rules.numbers_after, rules.every_s) == (str(tmp_path), 1, 2, 30.0)
    assert rules.resume_run == stores.RUN


def test_new_data_takes_slots_seed_and_numbers_of_the_other_run(tmp_path):
    stores.publish(tmp_path, 7, stores.save(stores.store(), tmp_path, 7))
    job = ElasticJob(script="train.py", continue_from=str(tmp_path), seed=8)
    spec = resolve.resolve(job, PlatformCapacity(cpu=2.0, memory=2.0**30), code=None).spec
    rules = spec.checkpoints
    assert rules.new_data and (spec.slots, spec.seed) == (stores.SLOTS, 5)
    assert (rules.resume, rules.resume_number, rules.resume_run) == (str(tmp_path), 7, stores.RUN)
    assert rules.numbers_after == 7


def test_resume_without_a_usable_checkpoint_is_an_error(tmp_path):
    with pytest.raises(errors.MissingFile, match="no usable checkpoint there"):
        resolve.find_checkpoint(str(tmp_path), print)


def test_path_as_url_becomes_a_file_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve.checkpoint_rules(CheckpointWish(url="copies")).url == f"file://{tmp_path}/copies"


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (CheckpointWish(every_s=0, url="s3://bucket"), "--checkpoint-url. without checkpoints"),
        (CheckpointWish(every_s=0, mirror=True), "--mirror. without checkpoints"),
        (CheckpointWish(mirror=True), "with one server: no other server could keep a copy"),
    ],
)
def test_contradicting_checkpoint_options_are_refused(wish, said):
    with pytest.raises(errors.BadInput, match=said):
        resolve.checkpoint_rules(wish)


def test_checkpoint_interval_is_at_most_the_export_interval():
    assert resolve.checkpoint_rules(CheckpointWish(), exports="10s").every_s == 10
    assert (
        resolve.checkpoint_rules(CheckpointWish(), exports="5m").every_s
        == resolve.checkpoint_rules(CheckpointWish()).every_s
        == 30
    )
    assert resolve.checkpoint_rules(CheckpointWish(every_s=5), exports="10s").every_s == 5
    with pytest.raises(errors.BadInput, match=r"exportEvery 10s .*checkpoints every 60 s"):
        resolve.checkpoint_rules(CheckpointWish(every_s=60), exports="10s")
