"""Where `bench platforms` runs its job: processes of this machine, and a Ray cluster of three raylets on it.

In: `springtide_lab.bench.control.platforms.platforms` makes one for each run. Out: `platform_job.Side`. Kubernetes:
`springtide_lab.bench.control.platforms.kubernetes_side`.
"""

import pathlib
from collections.abc import Sequence

from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages import messages
from springtide.telemetry import logs
from springtide.testing.cluster import LocalCluster
from springtide_lab.testing.ray_cluster import RayWorld

LINES = 1000


class Local:
    """`springtide run`, without a terminal."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._job: LocalCluster | None = None

    @property
    def job(self) -> LocalCluster:
        assert self._job is not None
        return self._job

    def submit(self, plan: RunPlan) -> None:
        self._job = LocalCluster(
            plan.script, plan.arguments, spec=plan.spec, folder=self._folder, grace_s=plan.grace_s
        ).__enter__()

    def status(self) -> messages.JobStatus:
        return self.job.status

    def printed(self, role: str) -> Sequence[str]:
        self.job.wait()
        return logs.tail(self.job.files.logs / f"{role}.log", LINES)

    def lose_a_node(self) -> None:
        """There is one host: both processes that another would take along."""
        self.job.kill("server-1")
        self.job.kill("worker-1")

    def close(self) -> None:
        if self._job is not None:
            self._job.__exit__()


class Ray:
    """A cluster of its own: a head and two nodes."""

    def __init__(self) -> None:
        self._world = RayWorld(nodes=2)
        self._name = ""

    def submit(self, plan: RunPlan) -> None:
        self._name = plan.spec.name
        self._world.do("submit", plan)

    def status(self) -> messages.JobStatus:
        status: messages.JobStatus = self._world.do("status", self._name)
        return status

    def printed(self, role: str) -> Sequence[str]:
        self._world.do("wait", self._name)
        said: list[str] = self._world.do("logs", self._name, role, LINES)
        return said

    def lose_a_node(self) -> None:
        """One that has a server and, if there is such a one, a worker."""
        nodes = set(self._world.do("nodes"))
        there: dict[str, list[str]] = {}
        for role, (node, _) in self._world.do("holders", self._name).items():
            if node in nodes:
                there.setdefault(node, []).append(role.partition("-")[0])
        self._world.do("remove", max(there, key=lambda node: (len(set(there[node])), len(there[node]))))

    def close(self) -> None:
        self._world.close()
