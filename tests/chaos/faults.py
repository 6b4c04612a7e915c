"""Injects the faults of a schedule into a job.

In: a step, a `ChaosJob`. Out: one line that says what was done; empty if the job had no such role just then.
"""

import os
import shutil
import signal
import subprocess

from tests.chaos import driver, sockets
from tests.process import disks, running


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
        job.breathe(step.lasts)
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


def _both(job, step):
    """Kill a worker and another role at the same moment."""
    hit = [there[step.number % len(there)] for kind in ("worker", step.target) if (there := job.of_kind(kind))]
    return " and ".join(role for role, pid in hit if driver.signal_pid(pid, signal.SIGKILL)) + " killed"


def _network(job, step):
    """Lose packets to a process for some batches of the others: some of them, or all."""
    role, pid = _chosen(job, step)
    share = {"lose": step.number / 10, "deaf": 1.0}[step.fault]
    if not pid or not sockets.lose(pid, share):
        return ""
    job.breathe(step.lasts)
    sockets.mend(pid)
    return f"{role} lost {share:.0%} of its packets"


def _reset(job, step):
    role, pid = _chosen(job, step)
    return f"reset {count} connections of {role}" if pid and (count := sockets.reset(pid)) else ""


def _slow(job, step):
    """Delay packets: a queue in front of the loopback sends only so much."""
    if not job.inside():
        return ""
    tc = [*job.inside(), "tc", "qdisc"]
    subprocess.run([*tc, "add", "dev", "lo", "root", *SLOW], check=True)
    job.breathe(step.lasts)
    subprocess.run([*tc, "del", "dev", "lo", "root"], check=job.over is False, capture_output=True)
    return "delayed all packets"


def _tell(name):
    def tell(job, step):
        value = step.number if name == "slow_disk" else step.number * DAY_S
        path = job.folder / f"{name}.part"
        path.write_text(str(value))
        path.replace(job.folder / name)
        return f"{name.replace('_', ' ')}: {value}"

    return tell


def _full(job, step):
    """Fill the disk of the run folder for some batches."""
    others = job.place / "others"
    disks.fill(others)
    try:
        job.breathe(step.lasts)
    finally:
        others.unlink()
    return "filled the disk"


def _damage(job):
    """Damage one file of the newest checkpoint that older ones do not need; return its name, or nothing."""
    if len(saved := job.saved()) < 2:
        return ""
    number = saved[-1].stem.rpartition("-")[2]
    files = [saved[-1], *sorted(saved[-1].parent.glob(f"server-*-{number}.*.seg"))]
    chosen = files[job.chance.randrange(len(files))]
    how = job.chance.choice(["truncate", "flip", "delete"])
    if how == "delete":
        chosen.unlink()
    elif how == "truncate":
        os.truncate(chosen, chosen.stat().st_size // 2)
    else:
        body = bytearray(chosen.read_bytes())
        body[len(body) // 2] ^= 0xFF
        chosen.write_bytes(body)
    return f"{how} {chosen.name}"


def _crash(job, step):
    """Kill the job as a whole and resume it; `number` 1: damage its newest checkpoint before."""
    job.crash()
    done = _damage(job) if step.number else ""
    job.resume()
    return f"killed the job, {done and done + ', '}resumed"


def _drain(job, step):
    """Stop the job as a user does and resume it."""
    job.gate(job.most)
    code, told = command(job, "stop", job.run)
    if code != 0:
        return f"stop refused with {code}: {told}"
    code, out, _ = job.wait_over()
    assert code == 130, f"a stopped job ends with exit code {code}: {out}"
    job.resume()
    return "stopped and resumed"


def _rival(job, step):
    """Start another job of this name with the same folder for checkpoints: it must be refused."""
    if not job.claimed():
        return ""
    code, told = command(job, "run", *job.words, "--logs", str(job.folder / "rival"), "--timeout", "60", *job.script)
    assert code == 2 and "belongs to run" in told, f"a second job with the same checkpoints ended with {code}: {told}"
    return "refused a second job"


def _hang_up(job, step):
    """Close the reading ends of the command's output."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for pipe in (job.command.process.stdout, job.command.process.stderr):
        os.dup2(nowhere, pipe.fileno())
    os.close(nowhere)
    return "closed its output"


def _out_of_memory(job, step):
    """Let a worker use more memory than it may; the kernel kills it."""
    role, pid = _chosen(job, step)
    if not pid:
        return ""
    (job.folder / f"eat-{role.rpartition('-')[2]}").touch()
    job.gate(job.most)
    job.until(lambda: not running.alive(pid), f"{role} is killed", within_s=60.0)
    return f"{role} ran out of memory"


DAY_S = 86_400
SLOW = ["tbf", "rate", "4mbit", "burst", "16kb", "latency", "300ms"]

FAULTS = {
    "kill": _kill,
    "kill both": _both,
    "pause": _pause,
    "stop": _stop,
    "scale": _scale,
    "lose": _network,
    "deaf": _network,
    "reset": _reset,
    "slow network": _slow,
    "clock": _tell("clock_shift"),
    "slow disk": _tell("slow_disk"),
    "full disk": _full,
    "crash": _crash,
    "drain": _drain,
    "rival": _rival,
    "hang up": _hang_up,
    "out of memory": _out_of_memory,
}


def possible():
    """Return the kinds of faults that this machine allows."""
    impossible = set()
    if not driver.private():
        impossible |= {"full disk", "slow network", "out of memory"}  # these need root
    if shutil.which("cc") is None:
        impossible |= set(driver.PRELOADS.values())
    return set(FAULTS) - impossible
