"""Where `bench platforms` runs its job on Kubernetes: an API server, the operator and nodes of this machine, and pods.

The job is submitted as a user would, with mutual TLS between all roles and no memory that pods could share. Its status
is asked of the master itself: the one in the cluster is written every two seconds only.
"""

import asyncio
import base64
import contextlib
import pathlib
import tempfile
import time
from collections.abc import Sequence

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.elastic_job import (
    CheckpointWish,
    ElasticJob,
    KubernetesWish,
    PatienceWish,
    RoleWish,
    RunVolume,
)
from springtide.platforms.agent import credentials, run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.k8s.api.client import Client, with_client
from springtide.platforms.k8s.api.kinds import NAMESPACES, PODS, SECRETS, Object
from springtide.platforms.k8s.client import install as installing
from springtide.platforms.k8s.client import job_handle
from springtide.platforms.k8s.client import submit as submitting
from springtide.platforms.k8s.objects import install_manifests, names
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator import process
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.rpc.transport import connection
from springtide_lab.kubernetes.api.server import ApiServer, LoopThread
from springtide_lab.kubernetes.kubelet.kubelet import LocalKubelet

SPACE = "measured"
GIB = 1 << 30
NODES = {f"node-{number}": (8.0, 16 * GIB) for number in range(3)}
LINES = 1000
ANSWER_S = 5.0
LOOK_S = 0.5


class Pods:
    """A cluster of its own: three nodes, all of them this machine."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._stack = contextlib.ExitStack()
        self._folder = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        for each in (folder, self._folder):
            each.chmod(0o755)  # pods are nobody in particular
        self._line: Line | None = None
        self._seen: JobStatus | None = None
        self._looked_at = 0.0
        try:
            server = self._stack.enter_context(ApiServer(self._folder / "api"))
            self._where = {"kubeconfig": str(server.kubeconfig), "namespace": SPACE}
            with_client(self._where, install)
            self._kubelet = self._stack.enter_context(
                LocalKubelet(server.kubeconfig, self._folder / "kubelet", nodes=NODES)
            )
            self._stack.enter_context(Operator(str(server.kubeconfig)))
        except BaseException:
            self._stack.close()
            raise

    def submit(self, plan: RunPlan) -> None:
        spec, script = plan.spec, pathlib.Path(plan.script)
        code = self._folder / "code"
        code.mkdir()
        (code / script.name).write_text(script.read_text())
        job = ElasticJob(
            name=spec.name,
            script=script.name,
            arguments=plan.arguments,
            workers=RoleWish(count=spec.workers),
            servers=RoleWish(count=spec.servers),
            data_workers="off",
            relaunches=spec.relaunches,
            checkpoints=CheckpointWish(every_s=spec.checkpoints.every_s),
            environment={"OMP_NUM_THREADS": "1"},
            patience=PatienceWish(heartbeat_s=spec.heartbeat_s, grace_s=plan.grace_s),
            kubernetes=KubernetesWish(run_volume=RunVolume(size="1Gi", shared=True), grace_s=5),
        )
        submitting.submit(job, code, self._where)
        self.job = job_handle.open_job(spec.name, self._where)

    def status(self) -> JobStatus:
        """From its master; what the cluster says, at most twice a second, where that is not there yet, or any more."""
        if self._line is not None:
            with contextlib.suppress(errors.MasterUnreachable, ConnectionError, TimeoutError):
                status = self._line.ask(messages.StatusRequest())
                assert isinstance(status, JobStatus)
                if not status.phase.over:
                    return status
        if time.monotonic() > self._looked_at + LOOK_S:
            if self._line is None:
                self._find()
            self._seen, self._looked_at = self.job.status(), time.monotonic()
        assert self._seen is not None
        return self._seen

    def printed(self, role: str) -> Sequence[str]:
        return [line.text for line in self.job.logs([role], lines=LINES, follow=False)]

    def lose_a_node(self) -> None:
        """One with a server and, if there is such a one, a worker, and without the master; its cloud takes it off the
        cluster at once, as for a machine that was taken back."""
        there: dict[str, list[str]] = {}
        for pod in self._pods():
            if pod["status"].get("phase") == "Running":
                there.setdefault(pod["spec"]["nodeName"], []).append(pod["metadata"]["labels"][names.ROLE])
        hosts = {node: roles for node, roles in there.items() if "master" not in roles}
        victim = max(hosts, key=lambda node: ("server" in hosts[node], len(set(hosts[node])), len(hosts[node])))
        self._kubelet.kill_node(victim)
        self._kubelet.remove_node(victim)

    def close(self) -> None:
        self._stack.close()

    def _pods(self) -> list[Object]:
        label = f"{names.JOB}={self.job.name}"
        return with_client(self._where, lambda client: client.list(PODS, labels=label)).items

    def _find(self) -> None:
        masters = [pod for pod in self._pods() if pod["metadata"]["name"] == names.master(self.job.name)]
        if not masters or not (address := masters[0]["status"].get("podIP")):
            return
        uid = self.job.read()["metadata"]["uid"]
        secret = with_client(self._where, lambda client: client.get(SECRETS, names.credentials(self.job.name, uid)))
        files = {name: base64.b64decode(value) for name, value in secret["data"].items()}
        root = self._folder / "certificates"
        credentials.lay_out(files, root)
        key, own = bytes.fromhex(files["secret"].decode().strip()), root / RoleKind.AGENT
        with contextlib.suppress(errors.MasterUnreachable):
            self._line = self._stack.enter_context(Line(f"{address}:{run_plan.MASTER_PORT}", key, str(own)))


class Line(LoopThread):
    """One connection to the master, held: asking it twenty times a second must not cost what is measured."""

    def __init__(self, address: str, secret: bytes, certificates: str) -> None:
        super().__init__("asking")
        self._where = (address, secret, certificates)

    async def main(self) -> None:
        address, secret, certificates = self._where
        self._master = await connection.connect(address, secret, within_s=1.0, certificates=certificates)
        self.ready()
        await self.over.wait()
        with contextlib.suppress(errors.SpringtideError, OSError):
            await self._master.close()

    def ask(self, request: Request) -> Reply:
        return self.call(self._master.ask(request), ANSWER_S)


async def install(client: Client) -> None:
    """Definitions and accounts, as `springtide k8s install` does it."""
    await client.create(NAMESPACES, NAMESPACES.body(SPACE))
    objects = install_manifests.everything(install_manifests.InstallPlan(image="springtide", namespace=SPACE))
    skipped = ("Namespace", "Deployment")
    await installing.apply(client, [body for body in objects if body["kind"] not in skipped], lambda _: None)


class Operator(LoopThread):
    """An operator, in a thread and an event loop of its own."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__("operator")
        self._options = process.OperatorOptions(site=Site(image="springtide"), kubeconfig=kubeconfig)

    async def main(self) -> None:
        ready = asyncio.Event()
        running = asyncio.create_task(process.run(self._options, self.over, ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not running.done():
            self.ready()
        await running
