"""`springtide status`: shows the state of a job once."""

import time
from typing import Annotated, Any

import typer

from springtide import errors
from springtide.cli.common import render
from springtide.cli.common.options import Job, JsonOnly, WhereOptions, verb
from springtide.cli.common.render import WIDTH, print_result, wrap
from springtide.domain.core.resources import show_memory
from springtide.domain.spec.job_spec import JobPhase
from springtide.launch import job_lookup
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages.types import JobStatus, MemberView


@verb("springtide status train --json")
def status(
    at: WhereOptions,
    job: Job = None,
    every: Annotated[bool, typer.Option("--all", help="List all jobs, running and past.")] = False,
    as_json: JsonOnly = False,
) -> int:
    """Show a job: progress, roles with CPU and memory, and the last decision with its reason. For a finished job, show
    the outcome."""
    if every:
        shown = [(reach, status_of(reach)) for reach in job_lookup.every(at.where())]
        lines = [columns("JOB", "STATE", "AGE", "SAMPLES", "WHY"), *(row(*job) for job in shown)]
        print_result(lines, {"jobs": [as_object(*job) for job in shown]}, as_json)
        return 0
    reach = job_lookup.find(job, at.where())
    found = reach.status()
    print_result([text(reach, found)], as_object(reach, found), as_json)
    return 0


def status_of(reach: JobHandle) -> JobStatus:
    try:
        return reach.status()
    except errors.SpringtideError as error:
        return JobStatus(name=reach.name, phase=JobPhase.STARTING, why=f"no answer: {error}", elapsed_s=0.0)


def row(reach: JobHandle, job: JobStatus) -> str:
    age = render.short_time(time.time() - reach.card.began_at)
    return columns(reach.name, job.phase, age, f"{job.samples:,}", job.why.splitlines()[0] if job.why else "")


def columns(name: str, state: str, age: str, samples: str, why: str) -> str:
    return f"{name:<20} {state:<9} {age:>5} {samples:>9}  {why}"[:WIDTH].rstrip()


def text(reach: JobHandle, job: JobStatus) -> str:
    job = render.called(job, reach.name)
    over = job.phase.over
    lines = wrap(render.outcome_text(job, reach.places)) if over else render.headline(job)
    lines += render.facts(job)
    if reach.platform != "local":
        lines += wrap(f"on      {reach.platform}")
    if not over:
        gpu = max((len(gpu_text(member)) for member in job.members), default=0)
        heading = f"  {'GPU':>{gpu}}" if gpu else ""
        lines += ["", f"{'ROLE':<14} {'STATE':<8} {'LIFE':>4} {'PID':>7} {'CPU':>9} {'MEMORY':>6}{heading}  LIMITS"]
        lines += [member_row(member, gpu) for member in job.members]
    return "\n".join(lines)


def gpu_text(member: MemberView) -> str:
    return str(member.usage.gpu) if member.usage and member.usage.gpu else ""


def member_row(member: MemberView, gpu: int = 0) -> str:
    """Return the status line of a role. `gpu` is the width of the GPU column; 0 omits the column."""
    usage = member.usage
    state = member.state or ("joined" if member.joined else "expected" if member.alive else "gone")
    cpu = f"{usage.cpu_s:.1f} s" if usage else "-"
    memory = show_memory(usage.memory) if usage else "-"
    limits = []
    if usage and usage.cpu_limit is not None:
        limits.append(f"cpu {usage.cpu_limit:g}")
    if usage and usage.memory_limit is not None:
        limits.append(f"memory {show_memory(usage.memory_limit)}")
    held = f"  {gpu_text(member) or '-':>{gpu}}" if gpu else ""
    head = f"{member.role!s:<14} {state:<8} {member.incarnation:>4} {member.pid or '-':>7} {cpu:>9} {memory:>6}{held}"
    return f"{head}  {', '.join(limits) or 'none'}"


def as_object(reach: JobHandle, job: JobStatus) -> dict[str, Any]:
    plain = render.status_object(job, reach.places)
    if job.phase is not JobPhase.FINISHED and not job.phase.over:
        plain.pop("exit_code")  # the job has no exit code yet
    return {**plain, "job": reach.name, "platform": reach.platform, "running": reach.running()}
