"""A whole job on a cluster that runs on this machine: an API server, the operator, a kubelet; and a script that counts.

Roles see only what the cluster gives them: the code by a ConfigMap, the run's folder by a volume. What the script has
counted it prints, and the test reads it from the pod's log.
"""

import asyncio
import base64
import contextlib
import io
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.client import job_handle
from springtide.platforms.k8s.client import submit as submission
from springtide.rpc.messages.types import JobStatus
from springtide_lab.kubernetes.kubelet.kubelet import LocalKubelet
from tests import waiting
from tests.platforms.k8s import operating
from tests.platforms.k8s.conftest import Cluster
from tests.process import counting

WAIT_S = 240.0  # far more than anything takes
GIB = 1 << 30

SCRIPT = (
    counting.SCRIPT.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "#")
    .replace("pathlib.Path(sys.argv[1])", "pathlib.Path()")
    .replace('folder / "hurry"', "pathlib.Path(sys.argv[1])")
    .partition("    part = folder")[0]
    + """
    import base64, io
    out = io.BytesIO()
    np.savez(out, small=state["small.weight"], keys=state["open.keys"], rows=state["open.rows"], steps=state["steps"])
    print("COUNTS", base64.b64encode(out.getvalue()).decode(), flush=True)
"""
)


class Whole:
    """One cluster with an operator and jobs, to be used within a `with`."""

    def __init__(
        self, cluster: Cluster, folder: pathlib.Path, nodes: dict[str, tuple[float, int]], beside: str = ""
    ) -> None:
        """`beside`: another namespace with jobs, so that the operator is for all of them."""
        self.cluster, self._folder, self._beside = cluster, folder, beside
        self.where = {"kubeconfig": str(cluster.kubeconfig), "namespace": cluster.namespace}
        self.space = cluster.namespace
        self._stack = contextlib.ExitStack()
        self._nodes = nodes
        self.signs = pathlib.Path(tempfile.mkdtemp(prefix="springtide-whole-", dir="/tmp"))
        self.signs.chmod(0o755)  # pods are nobody in particular

    def __enter__(self) -> "Whole":
        self._stack.callback(shutil.rmtree, self.signs, ignore_errors=True)
        try:
            self.kubeconfig = self.cluster.run(
                lambda client: operating.installed(client, self.cluster, self._folder, everywhere=bool(self._beside))
            )
            self.kubelet = self._stack.enter_context(
                LocalKubelet(
                    self.cluster.kubeconfig,
                    self._folder / "kubelet",
                    nodes=self._nodes,
                    scheduler="springtide-local",
                    namespaces=(self.space, *filter(None, (self._beside,))),
                )
            )
            self.start_operator()
            self._stack.callback(self.stop_operator)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- the operator ----

    def start_operator(self) -> None:
        """Start another operator after one was killed."""
        self.operator = operating.Operator(self.cluster, self.kubeconfig, everywhere=bool(self._beside))
        asyncio.run(self.operator.__aenter__())

    def stop_operator(self) -> None:
        """As a Deployment that is deleted."""
        asyncio.run(self.operator.__aexit__())

    # ---- a job ----

    def submit(
        self,
        name: str,
        ids: np.ndarray,
        *,
        pause_s: float = 0.05,
        batch: int = 20,
        space: str = "",
        files: dict[str, str] | None = None,
        **spec: Any,
    ) -> Any:
        """A job that counts, as a user would submit it; `files` beside its script."""
        code = self._folder / f"code-{space}{name}"
        code.mkdir()
        counting.write(code, ids, SCRIPT)
        for path, text in (files or {}).items():
            (code / path).write_text(text)
        where = self.where | ({"namespace": space} if space else {})
        arguments = (str(self.signs / f"hurry-{name}"), "1", str(batch), str(pause_s))
        submission.submit(ElasticJob(name=name, script="count.py", arguments=arguments, **spec), code, where)
        return job_handle.open_job(name, where)

    def hurry(self, name: str) -> None:
        """From now on the script takes no time."""
        (self.signs / f"hurry-{name}").touch()

    def until(self, job: Any, true: Any, what: str = "") -> JobStatus:
        """Wait for a status of the job and return it."""

        def seen() -> JobStatus | None:
            status = job.status()
            if true(status):
                return status
            assert not (status.phase.over and not what), f"{status.phase}: {status.why} {status.detail}"
            return None

        try:
            found: JobStatus = waiting.until(seen, what, within_s=WAIT_S, every_s=0.1)
            return found
        except AssertionError as vain:
            raise AssertionError(f"{vain}; {job.status()}\n{self.describe(job)}") from None

    def describe(self, job: Any) -> str:
        """Pods and the master's last log lines, for the output of a failed test."""
        pods = self.cluster.run(lambda client: client.list(kinds.PODS)).items
        there = [f"{pod['metadata']['name']}: {pod['status']}" for pod in pods]
        lines = [f"{line.role}: {line.text}" for line in job.logs([], lines=15, follow=False)]
        return "\n".join([*there, *lines])

    def pods(self, role: str) -> list[str]:
        """Names of the pods of a role that run."""

        async def look(client: Client) -> list[str]:
            found = (await client.list(kinds.PODS, labels=f"springtide.dev/role={role}")).items
            return [pod["metadata"]["name"] for pod in found if pod["status"].get("phase") == "Running"]

        return self.cluster.run(look)

    def nodes(self) -> dict[str, set[str]]:
        """Which pods run on each."""
        found: dict[str, set[str]] = {}
        for pod in self.cluster.run(lambda client: client.list(kinds.PODS)).items:
            if pod["status"].get("phase") == "Running":
                found.setdefault(pod["spec"]["nodeName"], set()).add(pod["metadata"]["name"])
        return found

    def delete(self, pod: str, **how: Any) -> None:
        """As `kubectl delete pod`."""
        self.cluster.run(lambda client: client.delete(kinds.PODS, pod, **how))

    def differences(self, job: Any, ids: np.ndarray, *, batch: int = 20) -> dict[str, float]:
        """Differences between trained counts and the dataset's."""
        printed = [line.text for line in job.logs([], lines=50, follow=False) if line.text.startswith("COUNTS ")]
        assert printed, self.describe(job)
        counts = base64.b64decode(printed[-1].removeprefix("COUNTS "))
        (self._folder / "counts.npz").write_bytes(io.BytesIO(counts).getvalue())
        return counting.differences(self._folder, ids, epochs=1, batch=batch)
