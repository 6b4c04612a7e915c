"""`springtide scale` and `springtide stop`: change a running job from outside.

In: a job's name. Out: what its master said. Both are safe to repeat.
"""

import os
import time
from dataclasses import asdict, dataclass

import msgspec

from springtide import errors
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.rpc.messages import messages

LOOK_S = 0.2
WORKERS_A_CORE = 8  # more than that is taken for a typing mistake


def most_workers() -> int:
    """Return the largest count that `scale` accepts without --yes."""
    return WORKERS_A_CORE * (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """How many of each kind; None leaves them."""

    workers: int | None = None
    servers: int | None = None
    data_workers: int | None = None

    @property
    def said(self) -> dict[str, int]:
        return {name: count for name, count in asdict(self).items() if count is not None}


def scale(name: str | None, wanted: ScaleTarget, where: JobLocation, *, as_json: bool, sure: bool = False) -> int:
    if not wanted.said:
        raise errors.BadInput("say how many: --workers N, --servers N, --data-workers N, or several of these")
    reach = job_lookup.find(name, where)
    most = most_workers()
    for kind, count in wanted.said.items():
        if count > most and not sure and reach.platform == "local":
            raise errors.BadInput(
                f"{words(kind, count)}: this machine has {os.cpu_count()} cores, and more than {most} of them would "
                "mostly wait for each other. Nothing was changed; if it is what you want, say --yes"
            )
    reach.ask(messages.ScaleRequest(wanted.workers, wanted.servers, data_workers=wanted.data_workers))
    text = " and ".join(words(kind, count) for kind, count in wanted.said.items())
    print(f"job {reach.name}: {text} wanted; see `springtide status {reach.name}`")
    if as_json:
        print(msgspec.json.encode({"job": reach.name, **wanted.said}).decode())
    return 0


def words(kind: str, count: int) -> str:
    noun = kind.removesuffix("s").replace("_", " ")
    return f"{count} {noun}{'' if count == 1 else 's'}"


def stop(name: str | None, where: JobLocation, *, wait: bool, as_json: bool) -> int:
    reach = job_lookup.find(name, where)
    reach.ask(messages.StopRequest("stopped by `springtide stop`"))
    print(f"job {reach.name}: draining, workers finish the batch in hand")
    while wait and reach.running():
        time.sleep(LOOK_S)
    status = reach.status()
    if wait:
        print(f"job {reach.name}: {status.phase}")
    if as_json:
        print(msgspec.json.encode({"job": reach.name, "phase": status.phase}).decode())
    return 0
