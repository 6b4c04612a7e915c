"""Submit a job to this machine or to a fake cluster."""

import sys
import types

import pytest

from springtide import errors
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch import job_lookup, submit
from springtide.launch.job_lookup import JobLocation
from springtide.platforms.agent import agent
from springtide.telemetry import logs


@pytest.fixture
def cluster(monkeypatch):
    handed = []
    module = types.ModuleType("stand_in_submitter")
    module.submit = lambda job, code, where, say: handed.append((job, code, where))
    monkeypatch.setitem(sys.modules, "stand_in_submitter", module)
    monkeypatch.setitem(job_lookup.SUBMITTERS, "k8s", "stand_in_submitter")
    return handed


def test_cluster_gets_the_named_job_and_a_card_stays_here(tmp_path, cluster):
    (tmp_path / "Train_CTR.py").write_text("")
    where = JobLocation(platform="k8s", options={"namespace": "ml"}, folder=str(tmp_path / "runs"))
    name = submit.submit(ElasticJob(script="Train_CTR.py"), where, code=tmp_path)
    ((job, code, options),) = cluster
    assert name == job.name == "train-ctr" and code == tmp_path and options == {"namespace": "ml"}
    (run,) = logs.find_runs(tmp_path / "runs")
    assert (run.job, run.card.platform, run.card.where, run.here) == ("train-ctr", "k8s", {"namespace": "ml"}, False)


def test_invalid_job_is_refused_before_submission(tmp_path, cluster):
    where = JobLocation(platform="k8s", folder=str(tmp_path / "runs"))
    with pytest.raises(errors.MissingFile, match="no script"):
        submit.submit(ElasticJob(script="train.py"), where, code=tmp_path)
    with pytest.raises(errors.MissingFile, match="no such folder; expected the folder with"):
        submit.submit(ElasticJob(script="train.py"), where, code=tmp_path / "nowhere")
    with pytest.raises(errors.BadInput, match="would not run"):
        submit.submit(ElasticJob(script="train.py", stopped=True), JobLocation(folder=str(tmp_path / "runs")))
    assert not cluster and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("train_ctr", "train-ctr"),
        ("9lives", "job-9lives"),
        ("a" * 63, "a" * 40),
        ("Train.v2", "train-v2"),
        ("9" * 63, "job-" + "9" * 36),
        ("01_first_loop", "job-01-first-loop"),
    ],
)
def test_job_names_are_valid_for_clusters(name, wanted):
    assert submit.cluster_name(name) == wanted


def test_two_jobs_of_one_name_do_not_run_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    job = ElasticJob(script="train.py", plan=False)
    first = submit.begin(job, tmp_path / "runs")
    assert first.files.root.name == "train"
    with pytest.raises(errors.BadInput, match="job train runs already, as train: stop it"):
        submit.begin(job, tmp_path / "runs")
    monkeypatch.setattr(agent.os, "getpid", lambda: 2**22 + 1)  # an agent that does not live
    agent.write_card(first.plan, first.files)
    assert submit.begin(job, tmp_path / "runs").files.root.name == "train-2"


def test_invalid_runs_folder_is_reported(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(errors.UserError, match="runs"), submit.alone(tmp_path / "runs"):
        pass
