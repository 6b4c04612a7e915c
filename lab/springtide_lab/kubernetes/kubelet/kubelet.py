"""Run a kubelet and a scheduler for one machine: pods of any API server run here as processes.

In: a kubeconfig and the simulated size of each node. The kubelet uses only standard calls of the Kubernetes API, so it
works with a real API server as well as with `ApiServer`. Next: `pod_lifecycle` runs one pod; `container_entry` isolates
containers.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Self

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, NODES, PODS, SECRETS, SERVICE_ACCOUNTS
from springtide_lab.kubernetes.api.server import LoopThread
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control import scheduler
from springtide_lab.kubernetes.control.reconcile import is_over
from springtide_lab.kubernetes.control.scheduler import View
from springtide_lab.kubernetes.kubelet import containers, nodes
from springtide_lab.kubernetes.kubelet.container_spec import Lookup, image_env
from springtide_lab.kubernetes.kubelet.containers import Machine
from springtide_lab.kubernetes.kubelet.nodes import NodeServer
from springtide_lab.kubernetes.kubelet.pod_lifecycle import Place, PodLife

log = logging.getLogger(__name__)

LEASE_S = 10.0
LATER_S = 1.0  # seconds until unschedulable pods are tried again, as nodes may have changed
EVICT_S = 0.5


class LocalKubelet(LoopThread):
    """Nodes on this machine. `nodes` maps names to (cores, bytes of memory); pods must name the `scheduler`."""

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        *,
        nodes: Mapping[str, tuple[float, int]] | None = None,
        scheduler: str = "default-scheduler",
        namespaces: Sequence[str] = (),
    ) -> None:
        super().__init__("local-kubelet")
        self.folder = pathlib.Path(folder)
        self._kubeconfig, self._scheduler, self._namespaces = os.fspath(kubeconfig), scheduler, namespaces
        self._sizes = dict(nodes or {"node-1": (float(os.cpu_count() or 1), memory_here())})
        self._lives: dict[str, PodLife] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lost: set[str] = set()
        self._addresses = 0
        self._dirty = asyncio.Event()

    def __enter__(self) -> Self:
        if why := containers.why_not():
            raise errors.BadInput(f"cannot run pods on this machine: {why}; run as root, or allow user namespaces")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        return super().__enter__()

    # ---- operations for tests ----

    def kill_node(self, name: str) -> None:
        """Simulate the loss of a machine: kill its processes without a report to the API, and mark the node as lost at
        once.
        """
        self.call(self._kill_node(name))

    def remove_node(self, name: str) -> None:
        """Remove a lost machine from the cluster, which then removes its pods."""
        self.call(self._remove_node(name))

    def drain(self, name: str) -> None:
        """Drain a node as `kubectl drain` does: evict its pods as their budgets allow, and wait until the node is
        empty.
        """
        self.call(self._drain(name))

    def pids(self, namespace: str, pod: str) -> dict[str, int]:
        """Return the process ids of a pod's containers on this machine, by container."""

        async def look() -> dict[str, int]:
            life = self._find(namespace, pod)
            found = {} if life is None else {name: each.first() for name, each in life.running.items()}
            return {name: pid for name, pid in found.items() if pid is not None}

        return self.call(look())

    # ---- methods of the kubelet's thread ----

    async def main(self) -> None:
        over = asyncio.create_task(self.over.wait())
        self._client = Client.open(self._kubeconfig)
        self._machine = Machine(self.folder)
        self._view = View(self._client, self._namespaces, self._dirty.set)
        self._logs = NodeServer(self._find, self.folder)
        beats: list[asyncio.Task[None]] = []
        try:
            starting = asyncio.create_task(self._start())
            await asyncio.wait([over, starting], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                raise errors.ClusterUnreachable("the kubelet was stopped before it had started")
            starting.result()
            beats = [asyncio.create_task(work) for work in (self._beat(), self._step_on())]
            self.ready()
            await asyncio.wait([over, *beats], return_when=asyncio.FIRST_COMPLETED)
            for task in beats:
                if task.done():
                    task.result()
        finally:
            await self._close(beats)

    async def _start(self) -> None:
        self._host = await nodes.host_for(self._client)
        await self._logs.start(self._host)
        for name, (cpu, memory) in self._sizes.items():
            await nodes.register(self._client, name, cpu, memory, host=self._host, port=self._logs.port)
        await self._view.start()

    async def _close(self, beats: Sequence[asyncio.Task[None]]) -> None:
        for task in [*beats, *self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*beats, *self._tasks.values(), return_exceptions=True)
        await self._view.close()
        await self._logs.close()
        self._machine.close()
        for name in self._sizes:
            with contextlib.suppress(errors.SpringtideError):  # the server may have ended already
                await nodes.remove(self._client, name)
        await self._client.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S)
            for name in self._sizes.keys() - self._lost:
                with contextlib.suppress(errors.SpringtideError):  # the next renewal may succeed
                    await nodes.renew(self._client, name)

    async def _step_on(self) -> None:
        places = scheduler.Scheduler(self._client, self._scheduler)
        while True:
            self._dirty.clear()
            self._step()
            mine = {name: node for (_, name), node in self._view.nodes.items() if name in self._sizes}
            try:
                await places.round(self._view.pods, mine)
            except errors.SpringtideError as error:
                log.warning("pods are placed later: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATER_S):
                    await self._dirty.wait()

    def _step(self) -> None:
        wanted = {pod["metadata"]["uid"]: pod for pod in self._view.pods.values() if self._is_here(pod)}
        for uid in self._lives.keys() - wanted.keys():  # deleted by force
            self._lives.pop(uid)
            self._tasks.pop(uid).cancel()
        for uid, pod in wanted.items():
            if uid in self._lives:
                self._lives[uid].see(pod)
            elif not is_over(pod) or pod["metadata"].get("deletionTimestamp"):
                self._begin(uid, pod)
        self._write_hosts()

    def _is_here(self, pod: Json) -> bool:
        node = pod["spec"].get("nodeName")
        own = pod["spec"].get("schedulerName") == self._scheduler
        return node in self._sizes and node not in self._lost and own

    def _begin(self, uid: str, pod: Json) -> None:
        self._addresses += 1
        here = 8 + os.getpid() % 200  # differs between kubelets of several test processes
        namespace = pod["metadata"]["namespace"]
        place = Place(
            client=self._client,
            machine=self._machine,
            folder=self.folder / "pods" / uid,
            claims=self.folder / "claims",
            hosts=self._hosts_of(namespace),
            address=f"127.{here}.{self._addresses // 250}.{1 + self._addresses % 250}",
            host=self._host,
            base_env=image_env(self._client.access.server),
            fetch=self._fetch,
            token_of=self._token_of,
            hindered=self._hindered,
        )
        self._lives[uid] = life = PodLife(place, pod)
        self._tasks[uid] = asyncio.create_task(life.run())
        self._tasks[uid].add_done_callback(lambda task: report(task, pod))

    def _find(self, namespace: str, name: str) -> PodLife | None:
        for life in self._lives.values():
            meta = life.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return life
        return None

    def _hindered(self, pod: Json) -> str:
        node = self._view.nodes.get(("", pod["spec"]["nodeName"]))
        others = [
            each
            for each in self._view.pods.values()
            if each["spec"].get("nodeName") == pod["spec"]["nodeName"]
            and each["metadata"]["uid"] != pod["metadata"]["uid"]
            and not scheduler.is_leaving(each)
        ]
        bare = {**(node or {}), "spec": {}}
        if node is None or scheduler.obstacle(pod, bare, []):
            return "Infeasible"
        return "Deferred" if scheduler.obstacle(pod, bare, others) else ""

    # ---- resources of pods ----

    async def _fetch(self, namespace: str, wanted: set[tuple[str, str]]) -> Lookup:
        found: dict[tuple[str, str], Json] = {}
        for resource, name in wanted:
            with contextlib.suppress(errors.NotFound):
                kind = CONFIG_MAPS if resource == "configmaps" else SECRETS
                found[resource, name] = await self._client.get(kind, name, namespace=namespace)
        return lambda resource, name: found.get((resource, name))

    async def _token_of(self, namespace: str, account: str, seconds: int, pod: Json) -> str:
        meta = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": max(600, seconds), "boundObjectRef": bound},
        }
        answer = await self._client.post(SERVICE_ACCOUNTS, account, "token", body, namespace=namespace)
        return str(answer["status"]["token"])

    def _hosts_of(self, namespace: str) -> pathlib.Path:
        path = self.folder / "hosts" / namespace
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(nodes.text(namespace, [], []))
        return path

    def _write_hosts(self) -> None:
        """Update the hosts files in place, because containers have these files mounted."""
        pods = list(self._view.pods.values())
        for namespace in {life.pod["metadata"]["namespace"] for life in self._lives.values()}:
            text = nodes.text(namespace, self._view.services.values(), pods).encode()
            path = self._hosts_of(namespace)
            if path.read_bytes() != text:
                with open(path, "r+b", buffering=0) as file:
                    file.write(text)
                    file.truncate(len(text))

    # ---- faults ----

    async def _kill_node(self, name: str) -> None:
        self._lost.add(name)
        for uid, life in list(self._lives.items()):
            if life.pod["spec"]["nodeName"] == name:
                self._lives.pop(uid)
                task = self._tasks.pop(uid)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await nodes.mark_lost(self._client, name)

    async def _remove_node(self, name: str) -> None:
        await nodes.remove(self._client, name)
        self._sizes.pop(name, None)

    async def _drain(self, name: str) -> None:
        await self._client.patch(NODES, name, {"spec": {"unschedulable": True}})
        while True:
            left = [pod for pod in self._view.pods.values() if pod["spec"].get("nodeName") == name]
            left = [pod for pod in left if not is_over(pod)]
            if not left:
                return
            for pod in left:
                if not pod["metadata"].get("deletionTimestamp"):
                    await self._ask_to_go(pod)
            await asyncio.sleep(EVICT_S)

    async def _ask_to_go(self, pod: Json) -> None:
        meta = pod["metadata"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        }
        with contextlib.suppress(errors.NotFound, errors.ClusterUnreachable, errors.Conflict):
            await self._client.post(PODS, meta["name"], "eviction", body, namespace=meta["namespace"])


def report(task: asyncio.Task[None], pod: Json) -> None:
    """Log an exception of a pod's task, which is an error of the kubelet."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("pod %s: %r", pod["metadata"]["name"], error, exc_info=error)


def memory_here() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
