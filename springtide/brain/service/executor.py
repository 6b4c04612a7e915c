"""Process of an executor: runs policies and keeps no state (`python -m springtide.brain.service.executor`).

In: frames with a `PolicyQuery` on standard input. Out: one frame with a `TaskReply` per query on standard output.
Output that a policy prints goes to standard error. The process exits at the end of its input, so it never outlives its
brain. Next: `brain.service.executor_pool` reads the reply.
"""

import os
import sys
from typing import BinaryIO

import msgspec

from springtide import errors
from springtide.domain.plan.plan import Decision, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.rpc.transport import frames

MAX_BYTES = 2**30
"""Largest size of one task. A job's view takes about 10 KB, so this holds a hundred thousand jobs."""


class PolicyQuery(msgspec.Struct, frozen=True):
    """Request to run a policy on a cluster view."""

    policy: str
    view: ClusterView
    config: PlanningConfig


class TaskReply(msgspec.Struct, frozen=True):
    """Decision of the policy."""

    decision: Decision


_tasks = msgspec.msgpack.Decoder(PolicyQuery)


def main() -> int:
    from springtide.planning.policy import registry

    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep a policy's prints out of the reply frames
    while (task := read(source)) is not None:
        try:
            decision = registry.load(task.policy)(task.view, task.config)
        except errors.SpringtideError as error:  # the policy's package may have been removed since the brain started
            decision = nothing(f"policy {task.policy} is not there: {error}")
        sink.write(frames.pack(TaskReply(decision), limit=MAX_BYTES))
        sink.flush()
    return 0


def read(source: BinaryIO) -> PolicyQuery | None:
    """Return the next task, or None at the end of the input."""
    head = source.read(frames.LENGTH.size)
    if len(head) < frames.LENGTH.size:
        return None
    (size,) = frames.LENGTH.unpack(head)
    return frames.unpack(source.read(size), _tasks)


if __name__ == "__main__":
    sys.exit(main())
