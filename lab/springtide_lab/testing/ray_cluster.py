"""Run a Ray cluster of several nodes in a child process, which contains the threads, files and warnings of Ray.

In: calls such as `RayWorld.do("submit", plan)`, which call methods of `RayTestCluster` over a pipe, one at a time.
Out: the results of the calls, or their errors. Nodes are real raylets.
"""

import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import springtide
import springtide_lab
from springtide import config
from springtide.domain.spec.elastic_job import RayWish
from springtide.platforms.agent import job_handle
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import JobStatus

CPUS = 2
"""Number of cores that Ray assumes for each node, so that any node can replace another."""
PATIENCE_S = 180.0
LOOK_S = 0.05
STARTS = 3
"""Times that a cluster is started. Ray gives a node 30 s, too little on a busy machine, and has no setting for it."""


class RayWorld:
    """A Ray cluster in a child process, called over a pipe."""

    def __init__(self, nodes: int, *options: str, module: str = "springtide_lab.testing.ray_cluster") -> None:
        """Start a cluster. `module` must run `main` with a subclass of `RayTestCluster` that accepts `options`."""
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(nodes), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        self._pipe.send((method, arguments, named))
        return self._answer()

    def close(self) -> None:
        self._pipe.close()  # the closed pipe tells the child process to end
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
    """The Ray cluster in the child process: a head and other nodes."""

    def __init__(self, nodes: int, **head: Any) -> None:
        """Start the cluster; `head` has the options of the head node."""
        import ray
        from ray.cluster_utils import Cluster

        self._runs = tempfile.mkdtemp(prefix="springtide-ray-")
        lean = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
        self._small = {"num_cpus": CPUS, "object_store_memory": 80 << 20}
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._small, **lean, **head})
        try:
            for _ in range(nodes):
                self._cluster.add_node(wait=False, **self._small)
            self._cluster.wait_for_nodes()
        except BaseException:
            self._cluster.shutdown()
            raise
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

    def submit(self, plan: RunPlan, **others: Any) -> str:
        """Submit a job to the cluster and return its name."""
        from springtide.platforms.ray_cluster import submit

        submit.submit(submit.order_of(plan, RayWish(**{"run_folder": self._runs, **others})))
        return plan.spec.name

    def status(self, name: str) -> JobStatus:
        return self._reach(name).status()

    def wait(self, name: str) -> JobStatus:
        """Wait until the job has ended; return its final status."""
        job, deadline = self._reach(name), time.monotonic() + PATIENCE_S
        while job.running():
            assert time.monotonic() < deadline, f"not over within {PATIENCE_S:g} s: {job.status()}"
            time.sleep(LOOK_S)
        return job.status()

    def logs(self, name: str, role: str, lines: int = 1000) -> list[str]:
        return [line.text for line in self._reach(name).logs([role], lines=lines, follow=False)]

    def _reach(self, name: str) -> job_handle.JobHandle:
        from springtide.platforms.ray_cluster.job_handle import RayJobHandle

        return RayJobHandle(name)


def environment() -> dict[str, str]:
    """Return the cluster's environment variables, so that its actors import the same modules as this process."""
    inherited = config.child_environment({}, {})
    here = [str(pathlib.Path(str(each.__file__)).parents[1]) for each in (springtide, springtide_lab)]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, [*here, inherited.get("PYTHONPATH", "")])),
        "RAY_worker_niceness": "0",  # the default of 15 would starve actors, such as our master, on a busy machine
    }


def start(make: Callable[[], RayTestCluster]) -> RayTestCluster:
    for _ in range(STARTS - 1):
        try:
            return make()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return make()


def main(make: Callable[..., RayTestCluster]) -> None:
    """Answer calls in the child process, one after another, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world = None
    pipe: connection.Connection[Any, Any] = connection.Connection(int(sys.argv[1]))
    try:
        world = start(lambda: make(int(sys.argv[2]), *sys.argv[3:]))
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
    main(RayTestCluster)
