"""An executor's process: `python -m springtide.brain.service.executor`. Tasks in, decisions out, nothing kept between
two.

In: frames with a `PolicyQuery` on standard input. Out: a frame with a `TaskReply` each on standard output; what a
policy prints goes to standard error. It ends when its input does, so that none outlives its brain. Next:
`brain.service.executor_pool` reads the answer.
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
"""Of one task. A job's view has some 10 KB: this is a hundred thousand of them."""


class PolicyQuery(msgspec.Struct, frozen=True):
    """Ask this policy about this cluster."""

    policy: str
    view: ClusterView
    config: PlanningConfig


class TaskReply(msgspec.Struct, frozen=True):
    """What it says."""

    decision: Decision


_tasks = msgspec.msgpack.Decoder(PolicyQuery)


def main() -> int:
    from springtide.planning.policy import registry

    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a policy that prints must not write into our frames
    while (task := read(source)) is not None:
        try:
            decision = registry.load(task.policy)(task.view, task.config)
        except errors.SpringtideError as error:  # its package may have gone since the brain was started
            decision = nothing(f"policy {task.policy} is not there: {error}")
        sink.write(frames.pack(TaskReply(decision), limit=MAX_BYTES))
        sink.flush()
    return 0


def read(source: BinaryIO) -> PolicyQuery | None:
    """The next task; None: there will be no more."""
    head = source.read(frames.LENGTH.size)
    if len(head) < frames.LENGTH.size:
        return None
    (size,) = frames.LENGTH.unpack(head)
    return frames.unpack(source.read(size), _tasks)


if __name__ == "__main__":
    sys.exit(main())
