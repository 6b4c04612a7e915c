"""Find the job a user means, on this machine or on a cluster."""

import sys
import types

import pytest

from springtide import errors
from springtide.cli.common.options import WhereOptions
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.telemetry import logs
from springtide.telemetry.logs import RunCard


class FakeClusterJob:
    """A stand-in for a job on a cluster."""

    platform = "ray"

    def __init__(self, name, where):
        self.name, self.where = name, where


@pytest.fixture
def ray(monkeypatch):
    module = types.ModuleType("stand_in_reach")
    module.open_job, module.names = FakeClusterJob, lambda where: ["newest", "older"]
    monkeypatch.setitem(sys.modules, "stand_in_reach", module)
    monkeypatch.setitem(job_lookup.REACHES, "ray", "stand_in_reach")


def local(folder, name, began_at):
    files = logs.make_run(folder, name)
    logs.write_card(files, RunCard(name=name, script="train.py", began_at=began_at, agent_pid=1, agent_start=-1))


def test_run_card_records_the_platform_of_a_job(tmp_path, ray):
    local(tmp_path, "train", 1.0)
    card = RunCard(name="ctr", script="t.py", began_at=2.0, platform="ray", where={"address": "10.0.0.5:6379"})
    job_lookup.note(tmp_path, card)
    where = JobLocation(folder=str(tmp_path))
    newest = job_lookup.find(None, where)
    assert (newest.platform, newest.name, newest.where) == ("ray", "ctr", {"address": "10.0.0.5:6379"})
    assert job_lookup.find("train", where).platform == "local"
    assert [each.platform for each in job_lookup.every(where)] == ["ray", "local"]
    here = JobLocation(folder=str(tmp_path), platform="local")
    assert job_lookup.find(None, here).name == "train" and len(job_lookup.every(here)) == 1
    job_lookup.note(tmp_path, RunCard(name="ctr", script="t.py", began_at=3.0, platform="ray"))
    assert job_lookup.find("ctr", where).where == {}


def test_named_cluster_is_asked_for_its_jobs(tmp_path, ray):
    where = JobLocation(folder=str(tmp_path), platform="ray")
    assert job_lookup.find(None, where).name == "newest" and job_lookup.find("older", where).name == "older"
    assert [each.name for each in job_lookup.every(where)] == ["newest", "older"]


def test_missing_platform_package_is_named(monkeypatch):
    monkeypatch.setitem(job_lookup.REACHES, "k8s", "no_such_package.reach")
    with pytest.raises(errors.MissingExtra, match=r"springtide\[k8s\]"):
        job_lookup.find("ctr", JobLocation(platform="k8s"))


def test_lookup_without_jobs_says_how_to_start_one(tmp_path, monkeypatch, ray):
    with pytest.raises(errors.MissingFile, match=r"springtide submit job\.yaml"):
        job_lookup.find(None, JobLocation(folder=str(tmp_path)))
    monkeypatch.setattr(sys.modules["stand_in_reach"], "names", lambda where: [])
    with pytest.raises(errors.MissingFile, match="--platform ray"):
        job_lookup.find(None, JobLocation(folder=str(tmp_path), platform="ray"))


def test_platform_specific_option_selects_its_platform():
    assert WhereOptions().where().platform == ""
    assert WhereOptions(address="auto", namespace="").where().platform == "ray"
    assert WhereOptions(namespace="ml").where().options == {"namespace": "ml"}
    assert WhereOptions(namespace="ml").where().platform == "k8s"
    with pytest.raises(errors.BadInput, match="without a cluster: give --platform"):
        WhereOptions(namespace="ml", address="auto").where()
    with pytest.raises(errors.UnknownName, match="Did you mean 'local'"):
        WhereOptions(platform="locla").where()
