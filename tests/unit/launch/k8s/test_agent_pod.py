"""Pod entry points outside a pod: one error line and an exit status, no traceback."""

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


def test_agent_without_a_cluster_names_the_missing_file(caplog):
    assert agent_pod.main(["ads", "ctr"]) == agent_pod.AGAIN
    assert "no Kubernetes cluster is known here" in caplog.text and "KUBECONFIG" in caplog.text


@pytest.mark.parametrize("given", [[], ["ctr"], ["ads", "ctr", "x"]])
def test_agent_without_a_job_says_how_to_submit_one(given, caplog):
    assert agent_pod.main(given) == agent_pod.AGAIN
    assert "expected NAMESPACE JOB" in caplog.text and "springtide submit" in caplog.text


def test_drain_hook_outside_a_pod_names_the_missing_variable(capsys):
    assert role_pod.main(["drain"]) == 1
    assert "drain: member '' must be a role and its rank" in capsys.readouterr().err
