"""Run the Kubernetes cluster of `bench platforms` on this machine: API server, operator, nodes and pods.

In: a folder and a `RunPlan`. Out: the handle of a job that is submitted as a user would. All roles use mutual TLS, and
pods share no memory.
"""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

from springtide.domain.spec.elastic_job import (
    CheckpointWish,
    ElasticJob,
    KubernetesWish,
    PatienceWish,
    RoleWish,
    RunVolume,
)
from springtide.platforms.agent.job_handle import JobHandle
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.k8s.api.client import Client, with_client
from springtide.platforms.k8s.api.kinds import NAMESPACES
from springtide.platforms.k8s.client import install as installation
from springtide.platforms.k8s.client import job_handle
from springtide.platforms.k8s.client import submit as submission
from springtide.platforms.k8s.objects import install_manifests
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator import process
from springtide_lab.kubernetes.api.server import ApiServer, LoopThread
from springtide_lab.kubernetes.kubelet.kubelet import LocalKubelet

SPACE = "measured"
NODES = {f"node-{number}": (8.0, 16 << 30) for number in range(3)}


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[Callable[[RunPlan], JobHandle]]:
    """Start a new cluster of three simulated nodes on this machine; call the yielded function to submit a job."""
    with contextlib.ExitStack() as stack:
        own = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        for each in (folder, own):
            each.chmod(0o755)  # pods run as a user who does not own these folders
        server = stack.enter_context(ApiServer(own / "api"))
        where = {"kubeconfig": str(server.kubeconfig), "namespace": SPACE}
        with_client(where, install)
        stack.enter_context(LocalKubelet(server.kubeconfig, own / "kubelet", nodes=NODES))
        stack.enter_context(Operator(str(server.kubeconfig)))

        def submit(plan: RunPlan) -> JobHandle:
            code = own / "code"
            code.mkdir()
            shutil.copy(plan.script, code)
            submission.submit(elastic_job(plan), code, where)
            return job_handle.open_job(plan.spec.name, where)

        yield submit


def elastic_job(plan: RunPlan) -> ElasticJob:
    spec = plan.spec
    return ElasticJob(
        name=spec.name,
        script=pathlib.Path(plan.script).name,
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


async def install(client: Client) -> None:
    """Create definitions and accounts, as `springtide k8s install` does."""
    await client.create(NAMESPACES, NAMESPACES.body(SPACE))
    objects = install_manifests.everything(install_manifests.InstallPlan(image="springtide", namespace=SPACE))
    skipped = ("Namespace", "Deployment")
    await installation.apply(client, [body for body in objects if body["kind"] not in skipped], lambda _: None)


class Operator(LoopThread):
    """An operator in a separate thread and event loop."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__("operator")
        self._options = process.OperatorOptions(site=Site(image="springtide"), kubeconfig=kubeconfig)

    async def main(self) -> None:
        await process.run(self._options, self.over, self.ready)
