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


def scale(
    name: str | None,
    *,
    workers: int | None = None,
    servers: int | None = None,
    folder: str,
    as_json: bool,
    sure: bool = False,
) -> int:
    """Ask for so many workers or servers; new ones join and surplus ones drain while the others train on."""
    if workers is None and servers is None:
        raise errors.BadInput("say how many: --workers N, --servers N, or both")
    if max(workers or 0, servers or 0) > (most := most_workers()) and not sure:
        wanted = f"{workers} workers" if (workers or 0) > most else f"{servers} servers"
        raise errors.BadInput(
            f"{wanted}: this machine has {os.cpu_count()} cores, and more than {most} of them would mostly "
            "wait for each other. Nothing was changed; if it is what you want, say --yes"
        )
    run = jobs.pick(name, folder)
    jobs.ask(run, messages.Scale(workers, servers))
    counts = {"worker": workers, "server": servers}
    text = " and ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items() if n is not None)
    print(f"job {run.job}: {text} wanted; see `springtide status {run.job}`")
    if as_json:
        said = {f"{kind}s": n for kind, n in counts.items() if n is not None}
        print(msgspec.json.encode({"job": run.job, **said}).decode())
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
