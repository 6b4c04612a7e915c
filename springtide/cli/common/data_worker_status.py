"""How data workers, and the queues that they fill, read in a status. In: a `JobStatus`. Next: `cli.show.status`."""

from springtide.domain.data.data_workers import FeedState
from springtide.rpc.messages.messages import JobStatus


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
    checked = f", {feed.checked} computed here too and equal" if feed.checked else ""
    return f"{feed.queued} of {feed.room} batches ready{waited}{checked}"
