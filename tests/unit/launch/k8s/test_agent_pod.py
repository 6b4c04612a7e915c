"""Pod entry points outside a pod: one error line and an exit status, no traceback."""

import pytest

from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob
from springtide.launch.k8s import agent_pod
from springtide.platforms.k8s.api import kubeconfig
from springtide.platforms.k8s.job import role_pod
from springtide.telemetry import logs
from tests.unit.checkpoint import stores


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    monkeypatch.setattr(logs, "log_to_stderr", lambda **_: None)
    monkeypatch.setattr(kubeconfig, "HOME", str(tmp_path / "none"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "SPRINGTIDE_MEMBER"):
        monkeypatch.delenv(name, raising=False)


def test_agent_without_a_cluster_names_the_missing_file(caplog):
    assert agent_pod.main(["ads", "ctr"]) == agent_pod.AGAIN
    assert "no Kubernetes cluster is known here" in caplog.text and "KUBECONFIG" in caplog.text


@pytest.mark.parametrize("given", [[], ["ctr"], ["ads", "ctr", "x"]])
def test_agent_without_a_job_says_how_to_submit_one(given, caplog):
    assert agent_pod.main(given) == agent_pod.AGAIN
    assert "expected NAMESPACE JOB" in caplog.text and "springtide submit" in caplog.text


def test_job_that_lost_its_journal_restarts_from_its_own_copies_or_from_the_other_run(tmp_path):
    copies = str(tmp_path / "copies")
    job = ElasticJob(script="train.py", continue_from="s3://monday", checkpoints=CheckpointWish(url=copies))
    again, source = agent_pod.restarted(job)
    assert again == job and source == f"s3://monday, because there is no checkpoint at {copies} yet"
    stores.publish(tmp_path / "copies", 7, stores.save(stores.store(), tmp_path / "copies", 7))
    again, source = agent_pod.restarted(job)
    assert (again.resume, again.continue_from) == (copies, "") and copies in source
    assert agent_pod.restarted(ElasticJob(script="train.py"))[1].startswith("the beginning")


def test_drain_hook_outside_a_pod_names_the_missing_variable(capsys):
    assert role_pod.main(["drain"]) == 1
    assert "drain: member '' must be a role and its rank" in capsys.readouterr().err
