"""Jobs for the tests of this folder, as a cluster has them."""

from springtide.platforms.k8s import job_object
from springtide.platforms.k8s.pods import Site

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
    return job_object.read(body(name, spec=spec, status=status, **metadata))
