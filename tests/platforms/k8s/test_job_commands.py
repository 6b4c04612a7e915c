"""Commands on a cluster job through the API alone: submit, status, scale, stop; the test plays the master."""

import base64
import contextlib
import threading

import pytest

from springtide import errors
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.agent.job_handle import LogLine
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, ELASTIC_JOBS, SCALE_PLANS, SECRETS
from springtide.platforms.k8s.client import job_handle, submit
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus
from tests.platforms.k8s import making

pytestmark = pytest.mark.extra("aiohttp", "cryptography")


@pytest.fixture
def where(cluster):
    cluster.run(making.define_ours)
    return {"kubeconfig": str(cluster.kubeconfig), "namespace": cluster.namespace}


def submit_job(where, folder, name="ctr"):
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('hello')")
    job = ElasticJob(name=name, script="train.py", arguments=("--epochs", "2"), working_dir="/home/me")
    return submit.submit(job, folder / "code", where)


def test_job_is_created_with_its_code_which_is_deleted_with_it(cluster, where, tmp_path):
    assert submit_job(where, tmp_path) == "ctr"
    thing = cluster.run(lambda client: client.get(ELASTIC_JOBS, "ctr"))
    shipped = thing["metadata"]["annotations"]["springtide.dev/code"]
    assert shipped.startswith("ctr-code-") and "workingDir" not in thing["spec"]
    code = cluster.run(lambda client: client.get(CONFIG_MAPS, shipped))
    assert code["metadata"]["ownerReferences"][0]["uid"] == thing["metadata"]["uid"] and code["binaryData"]["code.tgz"]
    with pytest.raises(errors.BadInput, match=r"job ctr runs already, in namespace .*: stop it"):
        submit.submit(ElasticJob(name="ctr", script="train.py"), None, where)
    over = {"status": {"phase": "Succeeded"}}
    cluster.run(lambda client: client.patch(ELASTIC_JOBS, "ctr", over, subresource="status"))
    with pytest.raises(errors.BadInput, match=r"is still in namespace .* \(finished\): delete the job"):
        submit.submit(ElasticJob(name="ctr", script="train.py"), None, where)


def test_credential_variables_are_stored_only_in_a_secret(cluster, where):
    environment = {"AWS_SECRET_ACCESS_KEY": "marked-key", "DATABASE": "mysql://me:marked-pw@db/x", "AWS_REGION": "here"}
    job = ElasticJob(name="ctr", script="train.py", arguments=("--token", "marked-token"), environment=environment)
    said = []
    submit.submit(job, None, where, said.append)
    thing = cluster.run(lambda client: client.get(ELASTIC_JOBS, "ctr"))
    assert thing["spec"]["environment"] == {"AWS_REGION": "here"}
    (named,) = thing["spec"]["kubernetes"]["environmentSecrets"]
    secret = cluster.run(lambda client: client.get(SECRETS, named))
    kept = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert kept == {name: environment[name] for name in ("AWS_SECRET_ACCESS_KEY", "DATABASE")}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == thing["metadata"]["uid"]
    assert said[0].startswith("arguments of the spec looks like a credential") and "marked" not in "".join(said)
    with pytest.raises(errors.BadInput, match="runs already"):
        submit.submit(job, None, where)
    assert len(cluster.run(lambda client: client.list(SECRETS, labels="springtide.dev/job=ctr")).items) == 1


def test_second_job_of_the_same_name_leaves_the_first_ones_code(cluster, where, tmp_path, monkeypatch):
    async def both_look_before_either_submits(client, name):
        return None

    monkeypatch.setattr(submit, "check_free", both_look_before_either_submits)
    submit_job(where, tmp_path)
    with pytest.raises(errors.AlreadyThere):
        submit.submit(ElasticJob(name="ctr", script="train.py"), tmp_path / "code", where)
    thing = cluster.run(lambda client: client.get(ELASTIC_JOBS, "ctr"))
    (code,) = cluster.run(lambda client: client.list(CONFIG_MAPS, labels="springtide.dev/job=ctr")).items
    assert code["metadata"]["name"] == thing["metadata"]["annotations"]["springtide.dev/code"]


def test_cluster_without_springtide_says_how_to_install_it(cluster, tmp_path):
    where = {"kubeconfig": str(cluster.kubeconfig), "namespace": cluster.namespace}
    if cluster.run(lambda client: client.has(ELASTIC_JOBS)):
        pytest.skip("this cluster has it")
    with pytest.raises(errors.NotFound, match="springtide k8s install"):
        submit.submit(ElasticJob(name="ctr", script="train.py"), None, where)


def test_status_is_the_masters_or_before_that_the_operators(cluster, where, tmp_path):
    submit_job(where, tmp_path)
    job = job_handle.open_job("ctr", where)
    assert job.running() and job.status().phase is JobPhase.STARTING and "operator" in job.status().why
    assert (job.card.script, job.card.arguments) == ("train.py", ("--epochs", "2"))
    assert job.story() == [] and job.roles() == [] and list(job.logs([], lines=5, follow=False)) == []
    status = JobStatus(name="ctr", phase=JobPhase.FINISHED, why="done", elapsed_s=3.5, samples=9)
    cluster.run(lambda client: StatusWriter(client, "ctr").write(status))
    assert job.status() == status and not job.running()
    with pytest.raises(errors.BadInput, match="does not run: finished"):
        job.ask(messages.ScaleRequest(workers=2))
    assert job_handle.names(where) == ["ctr"]
    with pytest.raises(errors.UnknownName, match="Did you mean 'ctr'"):
        job_handle.open_job("ctrr", where)


def test_stop_sets_a_field_of_the_spec(cluster, where, tmp_path):
    submit_job(where, tmp_path)
    job_handle.open_job("ctr", where).ask(messages.StopRequest("enough"))
    assert cluster.run(lambda client: client.get(ELASTIC_JOBS, "ctr"))["spec"]["stopped"] is True


@pytest.mark.parametrize("phase", ["Applied", "Rejected"])
def test_scale_creates_a_plan_and_prints_the_masters_answer(cluster, where, tmp_path, phase):
    submit_job(where, tmp_path)

    async def answer(client):
        async for change in client.watch(SCALE_PLANS):
            if change.what == "added":
                assert change.thing["spec"] == {"job": "ctr", "workers": 3, "reason": "asked"}
                said = {"status": {"phase": phase, "message": "too many"}}
                await client.patch(SCALE_PLANS, change.thing["metadata"]["name"], said, subresource="status")
                return

    master = threading.Thread(target=lambda: cluster.run(answer))
    master.start()
    try:
        refused = pytest.raises(errors.BadInput, match="too many") if phase == "Rejected" else contextlib.nullcontext()
        with refused:
            assert job_handle.open_job("ctr", where).ask(messages.ScaleRequest(workers=3, why="asked")) == messages.Ok()
    finally:
        master.join()


def test_events_are_found_among_other_log_lines():
    assert job_handle.event_of('{"at": 1.5, "event": "phase", "phase": "running"}')["event"] == "phase"
    for line in ("2026 INFO springtide: hello", '{"a": 1}', "{broken", "[1]", ""):
        assert job_handle.event_of(line) is None


def test_logs_leave_out_events_printed_by_the_masters_pod(monkeypatch):
    said = [
        LogLine("master", "serving"),
        LogLine("master", '{"at":1.0,"event":"joined"}'),
        LogLine("master", '{"other":1}'),
        LogLine("worker-0", '{"at":1.0,"event":"of the user"}'),
    ]
    monkeypatch.setattr(job_handle, "read_logs", lambda *_, **__: iter(said))
    shown = job_handle.KubernetesJobHandle("ctr", {}).logs([], lines=5, follow=False)
    assert list(shown) == [said[0], said[2], said[3]]
