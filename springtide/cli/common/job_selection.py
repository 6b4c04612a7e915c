"""Which job a command means, and where it is looked for.

In: options that commands have in common. Out: a `JobHandle` (any platform), or the run folder of a job of this machine.
Next: `launch.job_lookup`; `cli.show.status`, `cli.show.events`, `cli.job.scale_stop`, `cli.job.logs`, `cli.show.top`.
"""

from springtide import errors
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.telemetry import run_registry


def where_of(folder: str, *, platform: str = "", **options: str) -> JobLocation:
    """Build a `JobLocation`; an option that only one platform has implies that platform."""
    given = {name: value for name, value in options.items() if value}
    if not platform and given:
        platform = "ray" if set(given) == {"address"} else "k8s" if "address" not in given else ""
    return JobLocation(platform=platform, options=given, folder=folder)


def pick(name: str | None, folder: str) -> run_registry.JobRun:
    """Return the run folder of a local job: the named one, or the newest."""
    run = job_lookup.pick(name, folder)
    if not run.here:
        raise errors.BadInput(
            f"job {run.job} runs on {run.card.platform}; this command reads run folders of this machine only"
        )
    return run
