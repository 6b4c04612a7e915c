"""A job whose run folder is gone with its node begins anew from the copies of its checkpoints, where it keeps some.

In: `steward`, started again where the folder is not. Out: the plan with what to go on from; `JobFailed` that says what
would have helped. All roles of before are ended first: they belong to a job of another secret.
"""

from dataclasses import replace

from springtide import errors
from springtide.checkpoint.format import reader
from springtide.checkpoint.format.storage import place_of
from springtide.platforms.agent.run_plan import RunPlan


def plan_of(plan: RunPlan, folder: str) -> RunPlan:
    """The same job, from the newest whole checkpoint at its URL."""
    rules = plan.spec.checkpoints
    if not rules.url:
        raise errors.JobFailed(
            f"the node that kept the job is gone, and its run folder {folder} with it. With checkpoints.url it would "
            "have begun anew from there; with ray.runFolder on a file system that all nodes see it would have gone on"
        )
    found = reader.latest(rules.url)
    if found.manifest is None:
        raise errors.JobFailed(
            f"the node that kept the job is gone, its run folder {folder} with it, and there is no whole checkpoint in "
            f"{rules.url} yet: {'; '.join(found.troubles) or 'none was copied'}"
        )
    place = place_of(rules.url)
    again = replace(
        rules,
        resume=place.where,
        resume_number=found.manifest.number,
        resume_run=found.manifest.run,
        numbers_after=max(reader.numbers(place)),
    )
    spec = replace(plan.spec, checkpoints=again, slots=found.manifest.slots, seed=found.manifest.seed)
    return replace(plan, spec=spec)
