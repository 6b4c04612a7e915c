"""The operator against an API server with exactly its installed rights; no kubelet runs the pods."""

import contextlib
import pathlib
from collections.abc import Awaitable, Callable

import pytest

from springtide import errors
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from tests import waiting
from tests.platforms.k8s import operating
from tests.platforms.k8s.conftest import Cluster
from tests.platforms.k8s.operating import finish_deletion, mark, names, plan, plan_status, status_of, submit

# aiohttp ends TLS connections a moment after their session, and the operator's loop may be over by then
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WORKER, SERVER = {"role": "worker", "rank": 0, "cpu": 1, "memory": 1 << 30}, {"role": "server", "rank": 0, "cpu": 0.5}


def with_operator(cluster: Cluster, folder: pathlib.Path, work: Callable[[Client], Awaitable[None]]) -> None:
    """With an operator beside."""

    async def within(client: Client) -> None:
        kubeconfig = await operating.installed(client, cluster, folder)
        async with operating.Operator(cluster, kubeconfig, brainy=True):
            await work(client)

    cluster.run(within)


async def is_pending(client: Client) -> bool:
    return bool((await status_of(client)).get("phase") == "Pending")


def test_job_gets_a_master_and_then_its_planned_pods(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        await submit(client)
        await waiting.soon(lambda: has(client, "ctr-master"))
        await waiting.soon(lambda: is_pending(client))
        master = await client.get(kinds.PODS, "ctr-master")
        (volume,) = [each for each in master["spec"]["volumes"] if each["name"] == "brain-tls"]
        kept = await client.get(kinds.SECRETS, volume["secret"]["secretName"])
        assert sorted(kept["data"]) == ["ca.crt", "tls.crt", "tls.key"]
        await mark(client, "ctr-master", "Running")
        await waiting.soon(lambda: condition(client, "MasterRunning", "True"))

        await plan(client, WORKER, SERVER)
        await waiting.soon(lambda: has(client, "ctr-worker-0-0", "ctr-server-0-0"))
        budget = await client.get(kinds.DISRUPTION_BUDGETS, "ctr-servers")
        assert budget["spec"]["minAvailable"] == 0
        for pod in ("ctr-worker-0-0", "ctr-server-0-0"):
            await mark(client, pod, "Running")
        await waiting.soon(lambda: applied(client))

        await client.delete(kinds.PODS, "ctr-worker-0-0", grace_s=0)  # somebody does
        said = await waiting.soon(lambda: state(client, "ctr-worker-0-0", "Gone"))
        assert said["why"] == "somebody has deleted it"
        await plan(client, {**WORKER, "incarnation": 1}, SERVER)
        await waiting.soon(lambda: has(client, "ctr-worker-0-1"))
        assert "ctr-worker-0-0" not in await names(client)

        await plan(client, SERVER, kill=("ctr-worker-0-1",))
        await waiting.soon(lambda: lacks(client, "ctr-worker-0-1"))

        await client.patch(kinds.ELASTIC_JOBS, "ctr", {"status": {"phase": "Succeeded"}}, subresource="status")
        await waiting.soon(lambda: deleting(client, "ctr-server-0-0"))
        assert "ctr-master" in await names(client), "its log is still wanted"
        events = (await client.list(kinds.EVENTS)).items
        assert {each["involvedObject"]["name"] for each in events} >= {"ctr"}

    with_operator(cluster, tmp_path, work)


def test_lost_master_is_recreated_and_a_kept_job_deleted(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        await submit(client, kubernetes={"keepS": 0})
        first = await waiting.soon(lambda: find_pod(client, "ctr-master"))
        evicted = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        await mark(client, "ctr-master", "Failed", **evicted)
        await waiting.soon(lambda: is_recreated(client, "ctr-master", first["metadata"]["uid"]))
        await waiting.soon(lambda: masters(client, 2))
        over = {"phase": "Failed", "endedAt": "2020-01-01T00:00:00Z"}
        await client.patch(kinds.ELASTIC_JOBS, "ctr", {"status": over}, subresource="status")
        await waiting.soon(lambda: no_job(client))

    with_operator(cluster, tmp_path, work)


def test_operator_converges_despite_refusals_conflicts_and_broken_watches(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    async def work(client: Client) -> None:
        if cluster.server is None:
            pytest.skip("a real API server does not fail on purpose")
        faults = cluster.server.faults
        faults.fail(429, times=3, verbs=("create",), retry_after_s=0.05)
        faults.fail(409, times=2, verbs=("patch",), resource="elasticjobs/status")
        faults.fail(500, times=2, verbs=("list", "watch"))
        faults.fail(503, times=1, verbs=("create",), resource="pods", after=True)
        await submit(client)
        await waiting.soon(lambda: has(client, "ctr-master"))
        cluster.server.compact()
        cluster.server.drop_watches()
        await plan(client, WORKER, SERVER)
        await waiting.soon(lambda: has(client, "ctr-worker-0-0", "ctr-server-0-0"))
        faults.stale("pods", behind=3, times=2)
        await plan(client, SERVER)
        await waiting.soon(lambda: deleting(client, "ctr-worker-0-0"))
        faults.clear()

    with_operator(cluster, tmp_path, work)


def test_killed_or_duplicate_operators_create_each_pod_once(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def within(client: Client) -> None:
        kubeconfig = await operating.installed(client, cluster, tmp_path)
        wanted = [{"role": "worker", "rank": rank} for rank in range(12)]
        async with operating.Operator(cluster, kubeconfig) as doomed:
            await submit(client)
            await waiting.soon(lambda: has(client, "ctr-master"))
            if cluster.server is not None:
                cluster.server.faults.slow(0.02, verbs=("create",), resource="pods")
            await plan(client, *wanted)
            await waiting.soon(lambda: has(client, "ctr-worker-0-0"))
            doomed.kill()
        async with operating.Operator(cluster, kubeconfig), operating.Operator(cluster, kubeconfig):
            everyone = {f"ctr-worker-{rank}-0" for rank in range(12)}
            await waiting.soon(lambda: has(client, *everyone))
            made = await waiting.soon(lambda: made_of(client, 12))
            assert made == {f"worker-{rank}": 0 for rank in range(12)}
            assert await names(client) == everyone | {"ctr-master"}
            await plan(client, *wanted[:3])
            for rank in range(3, 12):
                await waiting.soon(lambda name=f"ctr-worker-{rank}-0": deleting(client, name))
                await finish_deletion(client, f"ctr-worker-{rank}-0")
            assert await names(client) == {f"ctr-worker-{rank}-0" for rank in range(3)} | {"ctr-master"}

    cluster.run(within)


def test_resources_of_a_running_pod_change_in_place(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        if not await client.has(kinds.PODS, "resize"):
            pytest.skip("this API server cannot resize pods")
        await submit(client)
        await waiting.soon(lambda: has(client, "ctr-master"))
        await plan(client, WORKER)
        await waiting.soon(lambda: has(client, "ctr-worker-0-0"))
        await mark(client, "ctr-worker-0-0", "Running")
        await plan(client, {**WORKER, "cpu": 2, "memory": 2 << 30})
        await waiting.soon(lambda: limits(client, "ctr-worker-0-0", {"cpu": "2", "memory": "2Gi"}))
        await waiting.soon(lambda: resizes(client))

    with_operator(cluster, tmp_path, work)


def test_spec_error_beyond_the_schema_is_in_the_status(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        await submit(client, slots=1000)
        said = await waiting.soon(lambda: failed(client))
        assert "power of two" in said["message"]

    with_operator(cluster, tmp_path, work)


def test_name_conflict_is_reported_and_waited_for(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    async def work(client: Client) -> None:
        spec = {"ports": [{"port": 80}], "clusterIP": "None"}
        await client.create(kinds.SERVICES, kinds.SERVICES.body("ctr") | {"spec": spec})
        await submit(client)
        await waiting.soon(lambda: condition(client, "MasterRunning", "False"))
        assert "services ctr exists and belongs to another" in (await status_of(client))["message"]
        await client.delete(kinds.SERVICES, "ctr")
        await waiting.soon(lambda: has(client, "ctr-master"))

    with_operator(cluster, tmp_path, work)


async def has(client: Client, *wanted: str) -> bool:
    return set(wanted) <= await names(client)


async def lacks(client: Client, name: str) -> bool:
    return name not in await names(client)


async def find_pod(client: Client, name: str):
    with contextlib.suppress(errors.NotFound):
        return await client.get(kinds.PODS, name)


async def is_recreated(client: Client, name: str, uid: str) -> bool:
    pod = await find_pod(client, name)
    return pod is not None and pod["metadata"]["uid"] != uid


async def masters(client: Client, number: int) -> bool:
    return (await status_of(client)).get("masters") == number


async def deleting(client: Client, name: str) -> bool:
    pod = await find_pod(client, name)
    return pod is None or "deletionTimestamp" in pod["metadata"]


async def condition(client: Client, kind: str, status: str) -> bool:
    conditions = (await status_of(client)).get("conditions") or []
    return any(each["type"] == kind and each["status"] == status for each in conditions)


async def applied(client: Client) -> bool:
    return (await plan_status(client)).get("phase") == "Applied"


async def state(client: Client, pod: str, phase: str):
    said = ((await plan_status(client)).get("pods") or {}).get(pod) or {}
    return said if said.get("phase") == phase else None


async def made_of(client: Client, number: int):
    made = (await plan_status(client)).get("made") or {}
    return made if len(made) == number else None


async def resizes(client: Client) -> bool:
    return bool((await plan_status(client)).get("inPlaceResize"))


async def limits(client: Client, pod: str, wanted: dict[str, str]) -> bool:
    from springtide.platforms.k8s.api import kinds

    has_now = (await client.get(kinds.PODS, pod))["spec"]["containers"][0]["resources"]["limits"]
    return {key: kinds.parse_quantity(value) for key, value in has_now.items()} == {
        key: kinds.parse_quantity(value) for key, value in wanted.items()
    }


async def failed(client: Client):
    said = await status_of(client)
    return said if said.get("phase") == "Failed" else None


async def no_job(client: Client) -> bool:
    try:
        return "deletionTimestamp" in (await client.get(kinds.ELASTIC_JOBS, "ctr"))["metadata"]
    except errors.NotFound:
        return True
