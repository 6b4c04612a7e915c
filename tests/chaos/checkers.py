"""Checks a finished chaos job: counts, equal bits, outcome, messages, and leftovers.

In: a `ChaosJob`, its exit code and its output. Out: `violations`: one sentence for each promise that was broken.
"""

import pathlib
import time

import numpy as np

from tests.chaos import driver, faults
from tests.chaos.schedule import BATCH

GONE_S = 30.0
"""Longest time that processes may take to be gone after the command, on a busy machine."""
MOST_DESCRIPTORS = 300
TRACE = "Traceback (most recent call last)"


def violations(job, code, out, said, reference=None):
    """`reference`: the model of an undisturbed run; None if bits need not be equal."""
    found = [*_outcome(job, code, out, said)]
    result = job.folder / "result.npz"
    if not result.exists():
        found.append("no worker has written the model")
    else:
        model = dict(np.load(result))
        found += _counts(job, model)
        found += _bits(model, reference) if reference is not None else []
    return found + _history(job) + _checkpoints(job) + _leaks(job)


def _outcome(job, code, out, said):
    if code != 0:
        yield f"exit code {code}, expected 0: {out[:3]}"
    if any(TRACE in line for line in [*out, *said]):
        yield "the command shows a traceback"
    trained = [event["samples"] for event in job.events() if event["event"] == "phase"]
    if code == 0 and (not trained or trained[-1] != len(job.ids)):
        yield f"the last phase counts {trained[-1:]} samples, expected {len(job.ids)}"
    for event in job.events():
        if event["event"] == "failed":
            yield f"a role failed: {event['error']}"


def _counts(job, model):
    """Check the counts: every id as often as in the data, every batch once (`tests/process/counting.py`)."""
    grown = BATCH * job.batches_a_step() if job.mode.sync == "bsp" else 1
    model = {name: np.rint(value * grown) if value.dtype == np.float32 else value for name, value in model.items()}
    wrong = {}
    expected = np.bincount(job.ids[:, 0] % 50, minlength=50)
    wrong |= {f"small {key}": extra for key, extra in enumerate(model["small.weight"][:, 0] - expected) if extra}
    keys, times = np.unique(job.ids, return_counts=True)
    held = dict(zip(model["large.keys"].tolist(), model["large.rows"][:, 0].tolist(), strict=True))
    for key, count in zip(keys.tolist(), times.tolist(), strict=True):
        if extra := held.pop(key, 0.0) - count:
            wrong[f"large {key}"] = extra
    wrong |= {f"large {key}, which is not in the data": count for key, count in held.items()}
    steps = model["steps"] - len(job.ids)
    wrong |= {f"samples of parameter {place}": extra for place, extra in enumerate(steps) if extra}
    return [f"{len(wrong)} counts are wrong: {dict(list(wrong.items())[:5])}"] if wrong else []


def _bits(model, reference):
    return [
        f"{name} differs from an undisturbed run"
        for name, value in reference.items()
        if not np.array_equal(model[name], value)
    ]


def _history(job):
    """Events that contradict each other: a life that joins twice, checkpoints that go back, a phase after the end."""
    lives, numbers, over = set(), [], ""
    for event in job.events():
        match event["event"]:
            case "master_replaced":
                lives = set()  # the next master may not know of a life that its predecessor has just let join
            case "joined":
                life = f"{event['role']}.{event['incarnation']}"
                if life in lives:
                    return [f"{life} joined twice"]
                lives.add(life)
            case "checkpoint" if event["outcome"] == "complete":
                numbers.append(event["number"])
            case "phase":
                if over:
                    return [f"the job went from {over} to {event['phase']}"]
                over = event["phase"] if event["phase"] in ("finished", "failed", "stopped") else ""
    if numbers != sorted(set(numbers)):
        return [f"checkpoints became complete in this order: {numbers}"]
    return []


def _checkpoints(job):
    """Every complete checkpoint can be read, byte for byte."""
    if not job.saved():
        return []
    code, told = faults.command(job, "checkpoints", job.run, "--verify")
    return [] if code == 0 else [f"`springtide checkpoints --verify` ended with {code}: {told}"]


def _leaks(job):
    """Processes, control groups and shared memory that outlive the command."""
    deadline = time.monotonic() + GONE_S
    while (left := driver.left_processes(job.folder)) and time.monotonic() < deadline:
        time.sleep(driver.LOOK_S)
    found = [f"process {pid} is left: {driver.words_of(pid)}" for pid in left]
    for command in job.commands:
        pid = command.process.pid
        groups = pathlib.Path("/sys/fs/cgroup").glob(f"**/springtide-{pid}-*")
        found += [f"control group {group} is left" for group in groups]
    found += [f"/dev/shm/{name} is left" for name in job.shared_memory()]
    if (job.files / "secret").exists():
        found.append("the secret of the run is left")
    return found


def descriptors(job):
    """Open descriptors of each living role, for the line of a run, and roles with far too many."""
    counts = {}
    for role, pid in job.roles().items():
        try:
            counts[role] = len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
    return [f"{role} has {count} open files" for role, count in counts.items() if count > MOST_DESCRIPTORS]
