"""Job objects as a cluster has them, for tests."""

from springtide.platforms.k8s.objects import job_objects, names
from springtide.platforms.k8s.objects.pods import Site

SITE = Site(image="springtide:1")


def body(name="ctr", *, spec=None, status=None, **metadata):
    """An ElasticJob."""
    return {
        "apiVersion": "springtide.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "ads", "uid": "u-1", "generation": 1, **metadata},
        "spec": {"script": "train.py", **(spec or {})},
        "status": status or {},
    }


def job(name="ctr", *, spec=None, status=None, **metadata):
    """The same, read."""
    return job_objects.read(body(name, spec=spec, status=status, **metadata))


def pod(name, given, *, phase="Running", role="worker", rank=0, incarnation=0, uid="", deleted_at="", **status):
    """A pod of a job, as the cluster shows it."""
    labels = {names.JOB: given.name, names.ROLE: role}
    if role != "master":
        labels |= {names.RANK: str(rank), names.INCARNATION: str(incarnation)}
    metadata = {
        "name": name,
        "namespace": given.namespace,
        "uid": uid or f"u-{name}",
        "labels": labels,
        "ownerReferences": [job_objects.owner(given)],
    }
    if deleted_at:
        metadata["deletionTimestamp"] = deleted_at
    return {"metadata": metadata, "spec": {"containers": [{"name": role}]}, "status": {"phase": phase, **status}}
