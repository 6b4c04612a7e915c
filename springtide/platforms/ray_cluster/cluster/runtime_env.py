"""The user's code on its way to a Ray cluster's nodes: a `runtime_env` with the working directory.

In: a local folder. Out: a `runtime_env` whose `working_dir` is a package in the cluster's store; every actor of the job
starts in a copy of it. What git ignores, and what is never code, stays here.
"""

import inspect
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions

from springtide import errors
from springtide.platforms.ray_cluster.cluster import cluster, ray_client


def shipped(folder: pathlib.Path | None, wished: Mapping[str, Any]) -> dict[str, Any]:
    """What the job's actors are to have, with the folder's content in the cluster's store."""
    wanted = dict(wished)
    if folder is None or "working_dir" in wanted:
        return wanted
    excludes = [*cluster.EXCLUDES, *wanted.get("excludes", ())]
    try:
        from ray._private.runtime_env.working_dir import upload_working_dir_if_needed as upload
    except ImportError as error:
        raise unsupported() from error
    known = inspect.signature(upload).parameters
    more = {"include_gitignore": True} if "include_gitignore" in known else {}
    try:
        with tempfile.TemporaryDirectory() as scratch, ray_client.uploading():
            packed = upload({"working_dir": str(folder), "excludes": excludes}, scratch_dir=scratch, **more)
    except TypeError as error:
        raise unsupported() from error
    except (ValueError, RuntimeError, OSError, exceptions.RayError) as error:
        raise cluster.explained(str(folder), error) from None
    return {**wanted, "working_dir": packed["working_dir"]}


def unsupported() -> errors.BadInput:
    """This Ray has no door for it."""
    return errors.BadInput(
        f"Ray {ray.__version__} does not let us ship the working directory; connect with "
        "ray.init(runtime_env={'working_dir': '.'}) first, or put the code on the nodes"
    )
