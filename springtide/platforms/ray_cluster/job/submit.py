"""Give a job to a Ray cluster: make its steward, and see that it lives.

In: a `JobOrder` from `launch.ray_job`, on a connection that ships the code (`cluster.connect`). Out: nothing; from
then on the cluster keeps the job, whatever becomes of the program that submitted it.
"""

import pathlib
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions
from ray.util import scheduling_strategies

from springtide import __version__, errors
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.ray_cluster.cluster import cluster, job_records, run_cleanup
from springtide.platforms.ray_cluster.job import job_order
from springtide.platforms.ray_cluster.job.steward import Steward

HELLO_S = 300.0  # packages of a runtime_env may be installed first
CALLS = 16  # that may wait at a steward at the same time


def submit(wanted: job_order.JobOrder, runtime_env: Mapping[str, Any] | None = None) -> None:
    """Make the steward and wait for its first word. All actors of the job get the steward's `runtime_env`."""
    refuse_taken(wanted.name)
    job_records.write(job_records.fresh(wanted))
    try:
        steward = ray.remote(Steward).options(**options_of(wanted, runtime_env or {})).remote(wanted)
        hello: Mapping[str, Any] = ray.get(steward.hello.remote(), timeout=HELLO_S)
    except exceptions.GetTimeoutError:
        cluster.kill(ray.get_actor(job_order.steward_of(wanted.name), namespace=job_order.NAMESPACE))
        raise errors.BadInput(
            f"job {wanted.name}: its steward was not started within {HELLO_S:g} s; see the Ray dashboard for why"
        ) from None
    except (exceptions.RuntimeEnvSetupError, exceptions.RayActorError, exceptions.RayTaskError) as error:
        raise refused(wanted.name, error) from None
    except ValueError as error:  # two that were submitted at the same moment
        raise errors.BadInput(f"job {wanted.name}: {error}") from None
    if hello["version"] != __version__:
        cluster.kill(steward)
        raise errors.BadInput(
            f"Springtide is {__version__} here and {hello['version']} on the cluster's nodes; install the same"
        )


def options_of(wanted: job_order.JobOrder, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's options for a steward: on the head node if it can be, since without that one there is no cluster."""
    head = cluster.head_node()
    near = scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=True) if head else "DEFAULT"
    custom = dict(wanted.resources.get("master", {}))
    return {
        "name": job_order.steward_of(wanted.name), "namespace": job_order.NAMESPACE, "lifetime": "detached",
        "max_restarts": -1, "max_task_retries": 0, "max_concurrency": CALLS, "num_cpus": 0,
        **({"runtime_env": dict(runtime_env)} if runtime_env else {}),
        **({"resources": custom} if custom else {"scheduling_strategy": near}),
    }  # fmt: skip


def refuse_taken(name: str) -> None:
    """One job of a name at a time; the next may have it when that one is over."""
    try:
        ray.get_actor(job_order.steward_of(name), namespace=job_order.NAMESPACE)
    except ValueError:
        return
    raise errors.BadInput(
        f"job {name} runs already, on this cluster: stop it with `springtide stop {name} --platform ray`, or give "
        "another name (--name)"
    )


def order_of(plan: RunPlan, *, run_folder: str = "", **others: Any) -> job_order.JobOrder:
    """An order of now. Without a folder the run has one in the steward's node's place for passing files."""
    name, began_at = plan.spec.name, time.time()
    base = pathlib.PurePosixPath(run_folder or run_cleanup.BASE)
    folder = str(base / f"{name}-{int(began_at * 1000):x}")
    return job_order.JobOrder(name=name, plan=plan, run_folder=folder, version=__version__, began_at=began_at, **others)


def refused(name: str, error: Exception) -> errors.UserError:
    """Why no steward came up."""
    text = str(error)
    if "No module named 'springtide" in text:
        return errors.BadInput(
            "the cluster's nodes have no Springtide: install it there, the same version as here, or name it in "
            "spec.ray.runtimeEnv (pip)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return errors.BadInput(f"job {name}: its steward could not be started: {lines[-1][:400] if lines else error!r}")
