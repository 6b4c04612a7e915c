"""The local kubelet runs pods like a real node, with our API server or a real one."""

import asyncio
import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, DISRUPTION_BUDGETS, PODS, SECRETS, SERVICES
from springtide_lab.kubernetes.kubelet import containers
from springtide_lab.kubernetes.kubelet.kubelet import LocalKubelet
from tests import waiting
from tests.platforms.k8s import making
from tests.platforms.k8s.conftest import Cluster

pytestmark = pytest.mark.process

SOON_S = 60.0
GIB = 1 << 30
Object = dict[str, Any]


@pytest.fixture
def kubelet(cluster: Cluster, tmp_path: pathlib.Path) -> Iterator[LocalKubelet]:
    if why := containers.why_not():
        pytest.skip(f"no containers here: {why}")
    sizes = {f"{cluster.namespace}-1": (4.0, 8 * GIB), f"{cluster.namespace}-2": (2.0, 4 * GIB)}
    with LocalKubelet(
        cluster.kubeconfig,
        tmp_path / "kubelet",
        nodes=sizes,
        scheduler="springtide-local",
        namespaces=[cluster.namespace],
    ) as running:
        yield running


async def until(client: Client, name: str, holds: Callable[[Object], Any]) -> Object:
    """Wait until the pod satisfies a condition; `{}` stands for a deleted pod."""
    seen: Object = {}
    try:
        async with asyncio.timeout(SOON_S):
            changes = client.watch(PODS, fields=f"metadata.name={name}")
            async with contextlib.aclosing(changes):  # type: ignore[type-var]
                async for change in changes:
                    seen = {} if change.what == "gone" else change.thing or seen
                    if holds(seen):
                        return seen
    except TimeoutError:
        raise AssertionError(f"it came to this: {seen.get('status')}") from None
    raise AssertionError("the watch ended")


def is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def runs(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running"


async def log_of(client: Client, name: str) -> list[str]:
    return [line async for line in client.logs(name)]


def end_of(pod: Object) -> Object:
    state: Object = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


TELLS = """
import os, socket, pathlib
at = pathlib.Path("/run/springtide")
print(os.environ["GREETING"], os.environ["FROM_MAP"], (at / "secret/word").read_text())
print(os.getpid(), os.getuid(), socket.gethostname(), os.environ["IP"] == socket.gethostbyname("friends"))
print(len((at / "account/token").read_text()) > 10, (at / "account/namespace").read_text() == os.environ["NAMESPACE"])
try:
    open("/etc/odd", "w")
except OSError as error:
    print(error.strerror)
(at / "run/written").write_text("yes")
"""


def rich_pod(namespace: str) -> Object:
    field = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    env = [
        {"name": "NAMESPACE", "value": namespace},
        {"name": "WHO", "value": "you"},
        {"name": "GREETING", "value": "hello-$(WHO)"},
        {"name": "IP", **field},
    ]
    mounts = [{"name": name, "mountPath": f"/run/springtide/{name}"} for name in ("secret", "run", "account")]
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    main = {
        "name": "main",
        "image": "springtide:test",
        "command": ["python", "-c", TELLS],
        "env": env,
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumeMounts": mounts,
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    body = making.pod(
        "rich",
        containers=[main],
        serviceAccountName="default",
        automountServiceAccountToken=False,
        securityContext={"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
        volumes=[
            {"name": "secret", "secret": {"secretName": "words", "defaultMode": 0o400}},
            {"name": "run", "emptyDir": {}},
            {"name": "account", "projected": {"sources": sources}},
        ],
    )
    body["metadata"]["labels"] = {"friend": "yes"}
    return body


def test_pod_sees_its_volumes_environment_hostname_and_services(cluster: Cluster, kubelet: LocalKubelet) -> None:
    async def work(client: Client) -> None:
        await client.create(SECRETS, SECRETS.body("words", data={"word": "c2VjcmV0"}))
        await client.create(CONFIG_MAPS, CONFIG_MAPS.body("settings", data={"FROM_MAP": "mapped"}))
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"friend": "yes"}}
        await client.create(SERVICES, SERVICES.body("friends", spec=spec))
        await client.create(PODS, rich_pod(cluster.namespace))
        over = await until(client, "rich", is_over)
        told = await log_of(client, "rich")
        assert over["status"]["phase"] == "Succeeded", told
        assert told == [
            "hello-you mapped secret",
            "1 10001 rich True",
            "True True",
            "Read-only file system",
        ]

    cluster.run(work)


def test_container_over_its_memory_ends_and_restarts_by_policy(cluster: Cluster, kubelet: LocalKubelet) -> None:
    async def work(client: Client) -> None:
        hungry = making.pod("hungry", "python", "-c", "x = bytearray(300 << 20); print(len(x))")
        hungry["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Mi", "cpu": "1"}}
        await client.create(PODS, hungry)
        again = making.pod("again", "sh", "-c", "echo $HOSTNAME; test -e /run/keep/x || { touch /run/keep/x; exit 3; }")
        again["spec"]["containers"][0]["volumeMounts"] = [{"name": "keep", "mountPath": "/run/keep"}]
        again["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
        again["spec"] |= {"restartPolicy": "OnFailure", "volumes": [{"name": "keep", "emptyDir": {}}]}
        await client.create(PODS, again)
        over = await until(client, "hungry", is_over)
        if containers_are_limited():
            assert (end_of(over)["exitCode"], end_of(over)["reason"]) == (137, "OOMKilled")
        over = await until(client, "again", is_over)
        status = over["status"]["containerStatuses"][0]
        assert (over["status"]["phase"], status["restartCount"]) == ("Succeeded", 1)
        before = status["lastState"]["terminated"]
        assert (before["exitCode"], before["message"]) == (3, "again\n"), "the end of its log, as the pod wants it"
        path = PODS.path(cluster.namespace, "again", "log")
        lines = client.stream(path, "read the log of the first life", {"previous": "true"}, silence_s=None)
        assert [line async for line in lines] == [b"again"]

    cluster.run(work)


def containers_are_limited() -> bool:
    from springtide.platforms.local import process_group

    return not process_group.why_not()


LINGERS = """
import signal
signal.signal(signal.SIGTERM, lambda *_: (print("asked"), exit(7)))
print("up")
signal.pause()
"""


def test_deleted_pod_runs_its_prestop_hook_and_terminates(cluster: Cluster, kubelet: LocalKubelet) -> None:
    async def work(client: Client) -> None:
        body = making.pod("slow", "python", "-u", "-c", LINGERS)
        hook = {"exec": {"command": ["sh", "-c", "echo hooked $(cat /proc/1/comm) >> /proc/1/fd/1"]}}
        body["spec"]["containers"][0]["lifecycle"] = {"preStop": hook}
        await client.create(PODS, body)
        lines = client.logs("slow", follow=True)
        await until(client, "slow", runs)
        told = [await asyncio.wait_for(anext(aiter_(lines)), SOON_S)]
        await client.delete(PODS, "slow")
        told += [line async for line in lines]
        assert told == ["up", "hooked python", "asked"]
        await until(client, "slow", lambda pod: not pod)

    cluster.run(work)


def aiter_(lines: Any) -> Any:
    return lines.__aiter__()


def test_disruption_budget_delays_evictions_and_a_drained_node_ends_empty(
    cluster: Cluster, kubelet: LocalKubelet
) -> None:
    async def work(client: Client) -> None:
        for name in ("a", "b"):
            body = making.pod(name, "sleep", "99", terminationGracePeriodSeconds=0)
            body["metadata"]["labels"] = {"app": "x"}
            await client.create(PODS, body)
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
        await client.create(DISRUPTION_BUDGETS, DISRUPTION_BUDGETS.body("keep", spec=spec))
        for name in ("a", "b"):
            await until(client, name, is_ready)

        async def may_lose_one() -> bool:
            budget = await client.get(DISRUPTION_BUDGETS, "keep")
            return bool(budget["status"].get("disruptionsAllowed") == 1)

        await waiting.soon(may_lose_one)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
        await client.post(PODS, "a", "eviction", {**eviction, "metadata": {"name": "a"}})
        hasty = Client(client.access, namespace=client.namespace, within_s=0.5)
        with pytest.raises(errors.SpringtideError):
            await hasty.post(PODS, "b", "eviction", {**eviction, "metadata": {"name": "b"}})
        await hasty.close()
        await until(client, "a", lambda pod: not pod)
        await client.delete(DISRUPTION_BUDGETS, "keep")
        node = (await client.get(PODS, "b"))["spec"]["nodeName"]
        await asyncio.to_thread(kubelet.drain, node)
        assert not (await client.list(PODS, labels="app=x")).items

    cluster.run(work)


def test_unschedulable_pod_and_one_without_an_image_report_it(cluster: Cluster, kubelet: LocalKubelet) -> None:
    async def work(client: Client) -> None:
        huge = making.pod("huge", "true")
        huge["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
        await client.create(PODS, huge)
        await client.create(
            PODS, making.pod("odd", containers=[{"name": "m", "image": "missing:1", "command": ["true"]}])
        )

        def says(pod: Object) -> bool:
            conditions = pod.get("status", {}).get("conditions", [])
            return any(each.get("reason") == "Unschedulable" for each in conditions)

        waiting = await until(client, "huge", says)
        message = next(each for each in waiting["status"]["conditions"] if each["type"] == "PodScheduled")["message"]
        assert message == "0/2 nodes are available: 2 Insufficient cpu."

        def pulls(pod: Object) -> bool:
            states = pod.get("status", {}).get("containerStatuses", [])
            return any(each["state"].get("waiting", {}).get("reason") == "ImagePullBackOff" for each in states)

        await until(client, "odd", pulls)

    cluster.run(work)


def test_pods_of_a_lost_node_disappear_with_it(cluster: Cluster, kubelet: LocalKubelet) -> None:
    async def work(client: Client) -> None:
        await client.create(PODS, making.pod("a", "sleep", "99"))
        running = await until(client, "a", runs)
        node = running["spec"]["nodeName"]
        await asyncio.to_thread(kubelet.kill_node, node)
        assert runs(await client.get(PODS, "a")), "nobody said otherwise"
        await asyncio.to_thread(kubelet.remove_node, node)
        if cluster.server is not None:  # a real cluster takes up to a minute
            await until(client, "a", lambda pod: not pod)
        await client.create(PODS, making.pod("b", "true"))
        assert (await until(client, "b", is_over))["spec"]["nodeName"] != node

    cluster.run(work)


def test_in_place_resize_reaches_the_running_process(cluster: Cluster, kubelet: LocalKubelet) -> None:
    if not containers_are_limited():
        pytest.skip("no control groups here")

    async def work(client: Client) -> None:
        if not await client.has(PODS, "resize"):
            pytest.skip("this API server cannot resize pods")
        body = making.pod("grows", "sleep", "99")
        body["spec"]["containers"][0]["resources"] = {"limits": {"memory": "128Mi", "cpu": "500m"}}
        await client.create(PODS, body)
        await until(client, "grows", runs)
        size = {"limits": {"memory": "256Mi", "cpu": "1"}, "requests": {"memory": "256Mi", "cpu": "1"}}
        change = {"spec": {"containers": [{"name": "main", "resources": size}]}}
        await client.patch(PODS, "grows", change, subresource="resize", how="strategic")

        def grown(pod: Object) -> bool:
            states = pod.get("status", {}).get("containerStatuses", [{}])
            return bool(states[0].get("resources", {}).get("limits", {}).get("memory") == "256Mi")

        await until(client, "grows", grown)
        pid = kubelet.pids(cluster.namespace, "grows")["main"]
        assert str(256 << 20) in memory_limit(pid)

    cluster.run(work)


def memory_limit(pid: int) -> str:
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for base, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            file = pathlib.Path(base + path) / name
            if ("memory" in names or not names) and file.exists():
                return file.read_text()
    return ""
