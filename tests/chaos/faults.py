"""Injects the faults of a schedule into a job.

In: a step, a `ChaosJob`. Out: one line that says what was done; empty if the job had no such role just then.
"""

import signal

from tests.chaos import driver
from tests.process import running


def inject(job, step):
    """Wait for the step's event, then inject its fault; return what happened, as a line."""
    late = ""
    if not step.event:
        job.until_trained(step.after)
    elif not job.until_event(step.event):
        late = " (the event did not come)"
    return f"{step}: {FAULTS[step.fault](job, step) or 'no such role now'}{late}"


def _chosen(job, step):
    """The role that a step means, and its process."""
    there = job.of_kind(step.target)
    return there[step.number % len(there)] if there else ("", 0)


def _kill(job, step):
    role, pid = _chosen(job, step)
    return f"killed {role}" if pid and driver.signal_pid(pid, signal.SIGKILL) else ""


def _pause(job, step):
    """Stop a process for some batches of the others, or until it is missed."""
    role, pid = _chosen(job, step)
    if not pid or not driver.signal_pid(pid, signal.SIGSTOP):
        return ""
    try:
        target = min(job.batches() + step.lasts, job.most)
        job.gate(target)
        job.until(lambda: job.batches() >= target, "batches of the others", within_s=1.0)
    finally:
        driver.wake(pid)
    return f"paused {role}"


def _stop(job, step):
    """Stop a process until the job has ended it as lost."""
    role, pid = _chosen(job, step)
    if not pid or not driver.signal_pid(pid, signal.SIGSTOP):
        return ""
    job.stopped[role] = pid
    job.gate(job.most)
    gone = job.until(lambda: not running.alive(pid), f"{role} is given up", within_s=driver.PATIENCE_S)
    job.stopped.pop(role)
    assert gone, f"{role} (pid {pid}) was stopped and is not replaced"
    return f"stopped {role} until it was replaced"


def _scale(job, step):
    code, told = command(job, "scale", job.run, f"--{step.target}", str(step.number), "--yes")
    return f"scaled {step.target} to {step.number}" if code == 0 else f"scale refused with {code}: {told}"


def command(job, *words):
    """Run another `springtide` command in the network of the job; return its exit code and its output."""
    other = running.Command(words, job.folder, before=job.inside())
    try:
        code, out = other.finish()
        return code, " ".join([*out, *other.rest()])
    finally:
        other.close()


FAULTS = {"kill": _kill, "pause": _pause, "stop": _stop, "scale": _scale}
