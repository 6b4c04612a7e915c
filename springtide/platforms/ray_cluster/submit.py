"""Submits a job to a Ray cluster: uploads the code, creates the steward and checks that it lives.

The cluster then keeps the job, even if the submitting program ends.
"""

import inspect
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions
from ray.util import scheduling_strategies

from springtide import __version__, errors
from springtide.domain.spec.elastic_job import RayWish
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.ray_cluster import cluster, job_order
from springtide.platforms.ray_cluster.steward import BASE, Steward

HELLO_S = 300.0  # seconds until a steward must answer; Ray may first install the packages of a runtime_env
CALLS = 16  # most concurrent calls that a steward accepts


def ship_code(folder: pathlib.Path | None, wished: Mapping[str, Any]) -> dict[str, Any]:
    wanted = dict(wished)
    if folder is None or "working_dir" in wanted:
        return wanted
    excludes = [*cluster.EXCLUDES, *wanted.get("excludes", ())]
    try:
        from ray._private.runtime_env.working_dir import upload_working_dir_if_needed as upload
    except ImportError as error:
        raise cannot_ship() from error
    known = inspect.signature(upload).parameters
    more = {"include_gitignore": True} if "include_gitignore" in known else {}
    try:
        with tempfile.TemporaryDirectory() as scratch, cluster.uploading():
            packed = upload({"working_dir": str(folder), "excludes": excludes}, scratch_dir=scratch, **more)
    except TypeError as error:
        raise cannot_ship() from error
    except (ValueError, RuntimeError, OSError, exceptions.RayError) as error:
        raise cluster.explained(str(folder), error) from None
    return {**wanted, "working_dir": packed["working_dir"]}


def cannot_ship() -> errors.BadInput:
    return errors.BadInput(
        f"Ray {ray.__version__} does not let us ship the working directory; connect with "
        "ray.init(runtime_env={'working_dir': '.'}) first, or put the code on the nodes"
    )


def submit(order: job_order.JobOrder, runtime_env: Mapping[str, Any] | None = None) -> None:
    refuse_taken(order.name)
    job_order.write_record(job_order.new_record(order))
    try:
        steward = ray.remote(Steward).options(**options_of(order, runtime_env or {})).remote(order)
        hello: Mapping[str, Any] = ray.get(steward.hello.remote(), timeout=HELLO_S)
    except exceptions.GetTimeoutError:
        cluster.kill(cluster.find_steward(order.name))
        raise errors.BadInput(
            f"job {order.name}: its steward was not started within {HELLO_S:g} s; see the Ray dashboard for why"
        ) from None
    except (exceptions.RuntimeEnvSetupError, exceptions.RayActorError, exceptions.RayTaskError) as error:
        raise refused(order.name, error) from None
    except ValueError as error:  # two jobs of the same name were submitted at the same moment
        raise errors.BadInput(f"job {order.name}: {error}") from None
    if hello["version"] != __version__:
        cluster.kill(steward)
        raise errors.BadInput(
            f"Springtide is {__version__} here and {hello['version']} on the cluster's nodes; install the same"
        )


def options_of(order: job_order.JobOrder, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    head = cluster.head_node()
    near = scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=True) if head else "DEFAULT"
    custom = dict(order.wish.resources.get("master", {}))
    return {
        "name": job_order.steward_of(order.name),
        "namespace": job_order.NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": CALLS,
        "num_cpus": 0,
        **({"runtime_env": dict(runtime_env)} if runtime_env else {}),
        **({"resources": custom} if custom else {"scheduling_strategy": near}),
    }


def refuse_taken(name: str) -> None:
    if cluster.find_steward(name) is not None:
        raise errors.BadInput(
            f"job {name} runs already, on this cluster: stop it with `springtide stop {name} --platform ray`, or give "
            "another name (--name)"
        )


def order_of(plan: RunPlan, wish: RayWish) -> job_order.JobOrder:
    began_at = time.time()
    base = pathlib.PurePosixPath(wish.run_folder or BASE)
    folder = str(base / f"{plan.spec.name}-{int(began_at * 1000):x}")
    return job_order.JobOrder(plan=plan, wish=wish, run_folder=folder, began_at=began_at)


def refused(name: str, error: Exception) -> errors.UserError:
    text = str(error)
    if "No module named 'springtide" in text:
        return errors.BadInput(
            "the cluster's nodes have no Springtide: install it there, the same version as here, or add it to "
            "spec.ray.runtimeEnv (pip)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return errors.BadInput(f"job {name}: its steward could not be started: {lines[-1][:400] if lines else error!r}")
