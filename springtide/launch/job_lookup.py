"""Finds the job that a command refers to, by options or by the cards that `run` and `submit` write."""

import importlib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide import errors, private_files
from springtide.platforms.agent.job_handle import JobHandle
from springtide.platforms.local.job_handle import LocalJobHandle
from springtide.telemetry import logs
from springtide.telemetry.logs import RunFiles

__all__ = ["JobLocation", "find"]

PLATFORMS = ("local", "ray", "k8s")
REACHES = {
    "ray": "springtide.platforms.ray_cluster.job_handle",
    "k8s": "springtide.platforms.k8s.client.job_handle",
}
SUBMITTERS = {"ray": "springtide.ray", "k8s": "springtide.platforms.k8s.client.submit"}
WORDS = {"ray": "the Ray platform", "k8s": "the Kubernetes platform"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """Place to search for a job."""

    platform: str = ""
    """Platform to search. Empty means the platform on the job's card, or else this machine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options for the cluster: `address`, or `namespace`, `context` and `kubeconfig`. Omitted options have the
    platform's defaults.
    """
    folder: str = ".springtide/runs"

    def __post_init__(self) -> None:
        if self.platform and self.platform not in PLATFORMS:
            raise errors.UnknownName("platform", self.platform, PLATFORMS)
        if self.options and self.platform in ("", "local"):
            raise errors.BadInput(
                f"{', '.join('--' + name for name in self.options)} without a cluster: give --platform ray or k8s too"
            )

    @property
    def remote(self) -> bool:
        return self.platform not in ("", "local")


def find(name: str | None, where: JobLocation) -> JobHandle:
    """Return the job of this name, or the newest job. Raise MissingFile if there is no such job."""
    if where.remote:
        reach = load(where.platform, REACHES)
        if name is None:
            known = reach.names(where.options)
            if not known:
                raise errors.MissingFile(
                    f"no jobs on {where.platform}; start one with `springtide submit job.yaml --platform "
                    f"{where.platform}`"
                )
            name = known[0]
        found: JobHandle = reach.open_job(name, where.options)
        return found
    return reached(pick(name, where.folder, only_here=where.platform == "local"))


def every(where: JobLocation) -> list[JobHandle]:
    if where.remote:
        reach = load(where.platform, REACHES)
        return [reach.open_job(name, where.options) for name in reach.names(where.options)]
    cards = logs.find_runs(pathlib.Path(where.folder))
    found = []
    for run in cards:
        try:
            if run.here or where.platform != "local":
                found.append(reached(run))
        # skip jobs that were deleted and clusters that cannot be reached, and show all other jobs
        except (errors.SpringtideError, OSError):
            continue
    return found


def pick(name: str | None, folder: str, *, only_here: bool = False) -> logs.JobRun:
    found = [run for run in logs.find_runs(pathlib.Path(folder)) if run.here or not only_here]
    if not found:
        raise errors.MissingFile(
            f"no jobs in {folder}; start one with `springtide run train.py` or `springtide submit job.yaml`, or "
            f"search elsewhere with --logs DIR or --platform"
        )
    if name is None:
        return found[0]
    for run in found:
        if run.job == name:
            return run
    raise errors.UnknownName("job", name, [run.job for run in found])


def pick_local(name: str | None, folder: str) -> logs.JobRun:
    run = pick(name, folder)
    if not run.here:
        raise errors.BadInput(
            f"job {run.job} runs on {run.card.platform}; this command reads run folders of this machine only"
        )
    return run


def reached(run: logs.JobRun) -> JobHandle:
    if run.here:
        return LocalJobHandle(run)
    found: JobHandle = load(run.card.platform, REACHES).open_job(run.card.name, run.card.where)
    return found


def note(folder: pathlib.Path, card: logs.RunCard) -> None:
    """Write the card of a cluster job, so that later commands find the job by its name."""
    files = RunFiles(folder / card.name)
    files.root.mkdir(parents=True, exist_ok=True, mode=private_files.FOLDER)
    logs.write_card(files, card)


def load(platform: str, modules: Mapping[str, str]) -> Any:
    if platform not in modules:
        raise errors.UnknownName("platform", platform, PLATFORMS)
    try:
        return importlib.import_module(modules[platform])
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("springtide"):
            raise
        raise errors.MissingExtra(WORDS[platform], platform) from error
