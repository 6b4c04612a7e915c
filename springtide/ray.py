"""Trains a job from inside a user's Ray program, with `springtide.ray.run(job)`.

The job runs on the Ray cluster to which the program is connected. `springtide status`, `logs`, `scale` and `stop` also
work on the job, as on jobs of `springtide submit --platform ray`. `springtide submit --platform ray` calls this
module's `submit`.

    status = springtide.ray.run("train.py", arguments=("--epochs", "3"))
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from springtide import errors
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch.spec import resolve, spec_reader
from springtide.platforms.ray_cluster import cluster, job_order
from springtide.platforms.ray_cluster import submit as submission
from springtide.platforms.ray_cluster.job_handle import RayJobHandle
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus

LOOK_S = 0.5

__all__ = ["run"]


def run(
    job: ElasticJob | str | os.PathLike[str],
    *,
    address: str = "",
    on_status: Callable[[JobStatus], None] = lambda _: None,
    **fields: Any,
) -> JobStatus:
    """Train a job to its end and return the final status.

    `job` is a script, a YAML file (`.yaml`, `.yml`) or an `ElasticJob`. `fields` override fields of `ElasticJob`. The
    call uses the program's Ray connection. If the program has no Ray connection, the call connects to `address` or to
    this machine's cluster. Ctrl-C, or an exception in `on_status`, drains the job; then it is raised again. A second
    Ctrl-C kills the job.
    """
    wanted, folder = job_of(job, fields)
    reach = RayJobHandle(submit(wanted, folder, {"address": address} if address else {}, print))
    try:
        while reach.running():
            on_status(reach.status())
            time.sleep(LOOK_S)
        return reach.status()
    except BaseException as error:
        drain(reach, f"stopped by its program: {type(error).__name__}")
        raise


def submit(job: ElasticJob, folder: pathlib.Path | None, where: Mapping[str, str], say: Callable[[str], None]) -> str:
    """Submit a job to the cluster at `where["address"]`. Upload `folder`; None means that the nodes have the code."""
    cluster.connect(where.get("address", ""))
    plan = resolve.resolve(job, job_order.capacity_of(cluster.nodes()), code=folder, say=say)
    submission.refuse_taken(plan.spec.name)
    submission.submit(
        submission.order_of(replace(plan, tls=job.ray.tls), job.ray), submission.ship_code(folder, job.ray.runtime_env)
    )
    return plan.spec.name


def drain(reach: RayJobHandle, why: str) -> None:
    """Ask workers to finish their current batch, and wait for the end of the job. Another Ctrl-C kills the job."""
    try:
        with contextlib.suppress(errors.SpringtideError):
            reach.ask(messages.StopRequest(why))
        while reach.running():
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        reach.kill()


def job_of(job: ElasticJob | str | os.PathLike[str], fields: dict[str, Any]) -> tuple[ElasticJob, pathlib.Path]:
    if isinstance(job, ElasticJob):
        wanted = replace(job, **fields)
        return wanted, pathlib.Path(wanted.working_dir or ".")
    path = pathlib.Path(job)
    if path.suffix in (".yaml", ".yml"):
        read = spec_reader.read(path)
        return replace(read.job, **fields), read.folder
    return ElasticJob(script=path.name, **fields), path.parent
