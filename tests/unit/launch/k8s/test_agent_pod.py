"""What a pod is for says so where there is no pod: one line and an exit status, no traceback."""

import pytest

from springtide.launch.k8s import agent_pod
from springtide.platforms.k8s.api import kubeconfig
from springtide.platforms.k8s.job import role_pod
from springtide.telemetry import logs


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    monkeypatch.setattr(logs, "log_to_stderr", lambda **_: None)
    monkeypatch.setattr(kubeconfig, "HOME", str(tmp_path / "none"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "SPRINGTIDE_MEMBER"):
        monkeypatch.delenv(name, raising=False)


def test_an_agent_without_a_cluster_says_which_file_it_wants(caplog):
    assert agent_pod.main(["ads", "ctr"]) == agent_pod.AGAIN
    assert "no Kubernetes cluster is known here" in caplog.text and "KUBECONFIG" in caplog.text


@pytest.mark.parametrize("given", [[], ["ctr"], ["ads", "ctr", "x"]])
def test_an_agent_without_a_job_says_how_jobs_are_begun(given, caplog):
    assert agent_pod.main(given) == agent_pod.AGAIN
    assert "expected NAMESPACE JOB" in caplog.text and "springtide submit" in caplog.text


def test_a_hook_outside_of_a_pod_says_what_it_lacks(capsys):
    assert role_pod.main(["drain"]) == 1
    assert "drain: member '' must be a role and its rank" in capsys.readouterr().err
