"""Runs a Ray cluster of several nodes in a child process, with Springtide jobs, for tests and benchmarks.

Ray leaves threads and files in its process and prints warnings; the child process contains all of that. In:
`RayWorld.do("submit", plan)` and so on call methods of `RayTestCluster`, one at a time, over pipes. Out: their results
or errors. Nodes are real raylets. Removing a node kills all its processes.

    with RayWorld(nodes=2) as world:
        job = world.do("submit", RunPlan(...))
        world.do("until", job, samples=1000)
        world.do("remove", world.do("nodes")[0])
        assert world.do("wait", job).phase == "finished"
"""

import contextlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import connection
from typing import Any

import springtide
import springtide_lab
from springtide import config
from springtide.platforms.agent import job_handle
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages import messages
from springtide.rpc.transport import addresses

CPUS = 2
"""Cores of each node in Ray's count, so that any node can take over from another."""
PATIENCE_S = 180.0
LOOK_S = 0.05


class RayWorld:
    """Client of the child process."""

    def __init__(self, nodes: int = 2, *, clients: bool = False) -> None:
        """Start a cluster; with `clients`, programs outside the cluster may use it through the address of `outside`."""
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "springtide_lab.testing.ray_cluster",
                str(nodes),
                str(int(clients)),
                str(theirs.fileno()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._answer()

    def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        self._pipe.send((method, arguments, named))
        return self._answer()

    def close(self) -> None:
        self._pipe.close()  # the child process sees the end of the pipe
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "RayWorld":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> Any:
        good, answer = self._pipe.recv()
        if not good:
            raise AssertionError(f"in the world of Ray:\n{answer}")
        return answer


class RayTestCluster:
    """The cluster in the child process: a head, and nodes that can be removed."""

    def __init__(self, nodes: int, *, clients: bool = False) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._runs = tempfile.mkdtemp(prefix="springtide-ray-")
        lean: dict[str, Any] = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
        if clients:
            with socket.create_server(("127.0.0.1", 0)) as found:
                self._clients = lean["ray_client_server_port"] = int(found.getsockname()[1])
        self._small = {"num_cpus": CPUS, "object_store_memory": 80 << 20}
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._small, **lean})
        for _ in range(nodes):
            self._cluster.add_node(wait=False, **self._small)
        self._cluster.wait_for_nodes()
        ray.init(address=self.address(), namespace="elsewhere", log_to_driver=False, logging_level="ERROR")

    def close(self) -> None:
        """Stop the cluster, and delete its logs and run folders."""
        import ray

        session = self._cluster.head_node.get_session_dir_path()
        ray.shutdown()
        self._cluster.shutdown()
        for folder in (session, self._runs):
            shutil.rmtree(folder, ignore_errors=True)

    def address(self) -> str:
        return str(self._cluster.address)

    def outside(self) -> str:
        """Return the address for programs outside the cluster, once it listens."""
        host, deadline = str(self._cluster.address).rpartition(":")[0], time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, self._clients), timeout=1.0):
                return f"ray://{host}:{self._clients}"
            time.sleep(LOOK_S)
        raise AssertionError(f"Ray's client server does not listen at port {self._clients}")

    # ---- nodes ----

    def nodes(self) -> list[str]:
        return [str(node.node_id) for node in self._cluster.worker_nodes]

    def remove(self, node_id: str) -> None:
        node = next(each for each in self._cluster.worker_nodes if each.node_id == node_id)
        self._cluster.remove_node(node, allow_graceful=False)

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

    # ---- a job ----

    def submit(self, plan: RunPlan, **others: Any) -> str:
        """Submit a job to the cluster and return its name."""
        from springtide.platforms.ray_cluster import submit

        submit.submit(submit.order_of(plan, **{"run_folder": self._runs, **others}))
        return plan.spec.name

    def status(self, name: str) -> messages.JobStatus:
        return self._reach(name).status()

    def until(
        self, name: str, *, samples: int = 0, workers: int | None = None, servers: int | None = None, life: int = 0
    ) -> messages.JobStatus:
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

    def wait(self, name: str) -> messages.JobStatus:
        """Return the final status, once the steward has left."""
        job, deadline = self._reach(name), time.monotonic() + PATIENCE_S
        while job.running():
            assert time.monotonic() < deadline, f"not over within {PATIENCE_S:g} s: {job.status()}"
            time.sleep(LOOK_S)
        return job.status()

    def story(self, name: str) -> list[dict[str, Any]]:
        return self._reach(name).story()

    def logs(self, name: str, role: str, lines: int = 1000) -> list[str]:
        return [line.text for line in self._reach(name).logs([role], lines=lines, follow=False)]

    def ask(self, name: str, request: messages.Request) -> messages.Reply:
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

    def kill_steward(self, name: str) -> None:
        """Kill the steward's process with SIGKILL; Ray restarts it."""
        import ray

        from springtide.platforms.ray_cluster import job_order

        steward = ray.get_actor(job_order.steward_of(name), namespace=job_order.NAMESPACE)
        os.kill(ray.get(steward.hello.remote())["pid"], signal.SIGKILL)

    def lose_run_folder(self, name: str) -> None:
        """Destroy the steward's node with its disk; Ray restarts the steward elsewhere."""
        from springtide.platforms.ray_cluster import job_records

        record = job_records.read(name)
        assert record is not None
        self.kill_steward(name)
        pathlib.Path(record.run_folder).rename(f"{record.run_folder}.lost")

    def kill_master(self, name: str) -> None:
        from springtide.platforms.ray_cluster import job_records

        record = job_records.read(name)
        assert record is not None
        where = addresses.read_master(pathlib.Path(record.run_folder) / "master.json")
        assert where is not None
        os.kill(where.pid, signal.SIGKILL)

    def _reach(self, name: str) -> job_handle.JobHandle:
        from springtide.platforms.ray_cluster.job_handle import RayJobHandle

        return RayJobHandle(name)


class _Somebody:
    """Actor that reserves cores and does nothing."""

    def here(self) -> bool:
        return True


def environment() -> dict[str, str]:
    """Return the variables of the cluster, so that its actors import the same modules as this process."""
    inherited = config.child_environment({}, {})
    here = [str(pathlib.Path(str(each.__file__)).parents[1]) for each in (springtide, springtide_lab)]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, [*here, inherited.get("PYTHONPATH", "")])),
        "RAY_worker_niceness": "0",  # by default 15: on a busy machine actors, and our master in one, would starve
    }


def serve(nodes: int, clients: bool, pipe: "connection.Connection[Any, Any]") -> None:
    """Serve calls in the child process, one after another, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world = None
    try:
        world = RayTestCluster(nodes, clients=clients)
        pipe.send((True, None))
        while True:
            method, arguments, named = pipe.recv()
            try:
                answer = True, getattr(world, method)(*arguments, **named)
            except Exception:
                answer = False, traceback.format_exc()
            pipe.send(answer)
    except EOFError:
        pass
    except Exception:
        pipe.send((False, traceback.format_exc()))
    finally:
        if world is not None:
            world.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2] == "1", connection.Connection(int(sys.argv[3])))
