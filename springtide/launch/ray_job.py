"""Submits a job to a Ray cluster: reads the capacity, resolves the job, uploads the code, creates the steward.

In: an `ElasticJob` from `launch.submit` or `springtide.ray`. Out: the name of a job that the cluster keeps. Next:
`platforms.ray_cluster.submit`.
"""

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch.spec import resolve
from springtide.platforms.ray_cluster import cluster, job_order
from springtide.platforms.ray_cluster import submit as submitting


def submit(job: ElasticJob, folder: pathlib.Path | None, where: Mapping[str, str], say: Callable[[str], None]) -> str:
    """Submit to the cluster at `where["address"]`; ship `folder`, unless the nodes have the code (None)."""
    cluster.connect(where.get("address", ""))
    plan = resolve.resolve(job, job_order.capacity_of(cluster.nodes()), code=folder, say=say)
    submitting.refuse_taken(plan.spec.name)
    wanted = submitting.order_of(
        replace(plan, tls=job.ray.tls),
        resources=job.ray.resources,
        pending_s=job.ray.pending_s,
        run_folder=job.ray.run_folder,
    )
    submitting.submit(wanted, submitting.ship_code(folder, job.ray.runtime_env))
    return plan.spec.name
