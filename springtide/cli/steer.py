"""`springtide scale` and `springtide stop`: change a running job from outside.

In: a job's name. Out: what its master said. Both are safe to repeat.
"""

import os
import time

import msgspec

from springtide import errors
from springtide.cli import jobs
from springtide.rpc import messages

LOOK_S = 0.2
WORKERS_A_CORE = 8  # more than that is taken for a typing mistake


def most_workers() -> int:
    """How many workers may be asked for without being asked back."""
    return WORKERS_A_CORE * (os.cpu_count() or 1)


def scale(name: str | None, *, workers: int, folder: str, as_json: bool, sure: bool = False) -> int:
    """Ask for so many workers; new ones join and surplus ones drain while the others train on."""
    if workers > (most := most_workers()) and not sure:
        raise errors.BadInput(
            f"{workers} workers: this machine has {os.cpu_count()} cores, and more than {most} workers would mostly "
            "wait for each other. Nothing was changed; if it is what you want, say --yes"
        )
    run = jobs.pick(name, folder)
    jobs.ask(run, messages.Scale(workers))
    print(f"job {run.job}: {workers} worker{'' if workers == 1 else 's'} wanted; see `springtide status {run.job}`")
    if as_json:
        print(msgspec.json.encode({"job": run.job, "workers": workers}).decode())
    return 0


def stop(name: str | None, *, wait: bool, folder: str, as_json: bool) -> int:
    """Drain a job: workers finish the batch in hand. With `wait`, until it is over."""
    run = jobs.pick(name, folder)
    jobs.ask(run, messages.Stop("stopped by `springtide stop`"))
    print(f"job {run.job}: draining, workers finish the batch in hand")
    while wait and run.running:
        time.sleep(LOOK_S)
    status = jobs.status_of(run)
    if wait:
        print(f"job {run.job}: {status.phase}")
    if as_json:
        print(msgspec.json.encode({"job": run.job, "phase": status.phase}).decode())
    return 0
