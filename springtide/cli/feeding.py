"""`--data-workers` and what goes with it, checked before anything starts.

In: words of the command line. Out: `FeedRules` for the job. Also how data workers read in a status.
"""

from springtide import errors
from springtide.domain.feeding import FeedRules, FeedState, Poison
from springtide.rpc.messages import JobStatus

POISONS: tuple[Poison, ...] = ("fail", "skip")


def rules(text: str, *, cpu: float | None, poison: str, quota: float | None, cores: int) -> FeedRules:
    """What a job may do about data workers. `quota`: cores of the whole job, where given; `cores`: of this machine."""
    if cpu is not None and cpu > cores:
        raise errors.BadInput(f"--data-worker-cpu {cpu:g}: this machine has {cores} cores; give that or less, or none")
    return FeedRules(workers=number(text), cpu=cpu, poison=policy(poison), cores=quota or float(cores))


def number(text: str) -> int | None:
    """How many; None: found out."""
    if text in ("auto", "off"):
        return None if text == "auto" else 0
    if not text.isdigit():
        raise errors.BadInput(f"--data-workers {text}: wanted a number, auto or off, such as --data-workers 2")
    return int(text)


def policy(text: str) -> Poison:
    """What becomes of a sample that cannot be made."""
    for known in POISONS:
        if text == known:
            return known
    raise errors.UnknownName("policy", text, POISONS)


def shown(status: JobStatus) -> str:
    """Data workers and the queues that they fill, on a line; empty where there is nothing to say."""
    if not status.data_workers_wanted and not status.data_workers_alive:
        return f"none: {status.data_workers_why}" if status.data_workers_why else ""
    parts = [f"{status.data_workers_alive}/{status.data_workers_wanted} data workers"]
    if status.feed is not None and status.feed.room:
        parts.append(queue(status.feed))
    return ", ".join(parts) + (f"; {status.data_workers_why}" if status.data_workers_why else "")


def queue(feed: FeedState) -> str:
    """How full queues are, and how long workers have waited before them."""
    waited = f", waited {feed.waited_s / feed.looped_s:.0%} of the time" if feed.looped_s else ""
    return f"{feed.queued} of {feed.room} batches ready{waited}"
