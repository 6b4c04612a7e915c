"""The Ray cluster of `springtide_lab.testing.ray_cluster` with the faults and questions of tests.

world = ray_world.start(nodes=1)
job = world.do("submit", RunPlan(...))
world.do("until", job, samples=1000)
world.do("kill_master", job)
"""

import contextlib
import os
import pathlib
import signal
import socket
import time
from typing import Any

from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.rpc.transport import addresses
from springtide_lab.testing import ray_cluster
from springtide_lab.testing.ray_cluster import LOOK_S, PATIENCE_S, RayWorld


def start(nodes: int, *, clients: bool = False) -> RayWorld:
    """With `clients`, programs outside the cluster may use it through the address of `outside`."""
    return RayWorld(nodes, *(["clients"] if clients else []), module=__name__)


class FaultyCluster(ray_cluster.RayTestCluster):
    """A cluster that loses masters, stewards and disks, and that programs outside of it can use."""

    def __init__(self, nodes: int, clients: str = "") -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._clients = int(probe.getsockname()[1])
        super().__init__(nodes, **({"ray_client_server_port": self._clients} if clients else {}))

    def outside(self) -> str:
        """Return the address for programs outside the cluster, once it listens."""
        host, deadline = str(self._cluster.address).rpartition(":")[0], time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, self._clients), timeout=1.0):
                return f"ray://{host}:{self._clients}"
            time.sleep(LOOK_S)
        raise AssertionError(f"Ray's client server does not listen at port {self._clients}")

    def announce(self, node_id: str, within_s: float) -> None:
        """Announce the end of a node, as a cloud does for spot nodes."""
        import ray
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        taken, why = ray._raylet.GcsClient(address=self.address()).drain_node(
            node_id, reason, "as a test wants it", int((time.time() + within_s) * 1000)
        )
        assert taken, why

    def add(self) -> str:
        return str(self._cluster.add_node(**self._small).node_id)

    def nodes(self) -> list[str]:
        return [str(node.node_id) for node in self._cluster.worker_nodes]

    def remove(self, node_id: str) -> None:
        """Remove a node, which kills all its processes."""
        node = next(each for each in self._cluster.worker_nodes if each.node_id == node_id)
        self._cluster.remove_node(node, allow_graceful=False)

    def holders(self, name: str) -> dict[str, tuple[str, int]]:
        """Return node and process id of each running role."""
        import ray

        from springtide.platforms.ray_cluster import cluster

        found = {}
        for life, actor in cluster.holders(name).items():
            with contextlib.suppress(ray.exceptions.RayError, TypeError):  # the actor is not placed yet, or gone
                _, started = ray.get(actor.who.remote(), timeout=30)
                found[str(life.role)] = (started.node, started.pid)
        return found

    def until(
        self, name: str, *, samples: int = 0, workers: int | None = None, servers: int | None = None, life: int = 0
    ) -> JobStatus:
        """Wait until the job has trained this many samples with this many joined roles, and at least one role is in
        this life or a later one.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = self.status(name)
            there = [each for each in status.members if each.joined and each.alive]
            joined = [str(each.role.kind) for each in there]
            enough = status.samples >= samples and any(each.incarnation >= life for each in there)
            if enough and workers in (None, joined.count("worker")) and servers in (None, joined.count("server")):
                return status
            assert not status.phase.over, f"it is over before that: {status}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {status}"
            time.sleep(LOOK_S)

    def story(self, name: str) -> list[dict[str, Any]]:
        return self._reach(name).story()

    def ask(self, name: str, request: Request) -> Reply:
        return self._reach(name).ask(request)

    def occupy(self, node_id: str, cpu: float) -> str:
        """Reserve cores of a node for a dummy actor, and return the name that releases them."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = f"somebody-{node_id}"
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        somebody = ray.remote(_Somebody).options(
            name=name, lifetime="detached", num_cpus=cpu, scheduling_strategy=there
        )
        ray.get(somebody.remote().here.remote())
        return name

    def vacate(self, name: str) -> None:
        import ray

        ray.kill(ray.get_actor(name))

    def home(self) -> str:
        return str(self._cluster.head_node.node_id)

    def kill_steward(self, name: str) -> None:
        """Kill the steward's process with SIGKILL; Ray restarts it."""
        import ray

        from springtide.platforms.ray_cluster import job_order

        steward = ray.get_actor(job_order.steward_of(name), namespace=job_order.NAMESPACE)
        os.kill(ray.get(steward.hello.remote())["pid"], signal.SIGKILL)

    def lose_run_folder(self, name: str) -> None:
        """Destroy the steward's node with its disk; Ray restarts the steward elsewhere."""
        from springtide.platforms.ray_cluster import job_order

        record = job_order.read_record(name)
        assert record is not None
        self.kill_steward(name)
        pathlib.Path(record.run_folder).rename(f"{record.run_folder}.lost")

    def kill_master(self, name: str) -> None:
        from springtide.platforms.ray_cluster import job_order

        record = job_order.read_record(name)
        assert record is not None
        where = addresses.read_master(pathlib.Path(record.run_folder) / "master.json")
        assert where is not None
        os.kill(where.pid, signal.SIGKILL)


class _Somebody:
    """Actor that reserves cores and does nothing."""

    def here(self) -> bool:
        return True


if __name__ == "__main__":
    ray_cluster.main(FaultyCluster)
