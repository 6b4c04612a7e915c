"""Process of an executor: runs policies and keeps no state (`python -m springtide.brain.service.executor`).

An executor exits at the end of its input, so it never outlives its brain. Next: `brain.service.executor_pool` reads the
reply.
"""

import sys

import msgspec

from springtide import errors
from springtide.brain.service import child_process
from springtide.domain.plan.plan import Decision, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig

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


def main() -> int:
    from springtide.planning.policy import registry

    source, sink = child_process.open_pipes()
    queries = msgspec.msgpack.Decoder(PolicyQuery)
    while (query := child_process.read_request(source, queries, limit=MAX_BYTES)) is not None:
        try:
            decision = registry.load(query.policy)(query.view, query.config)
        except errors.SpringtideError as error:  # the policy's package may have been removed since the brain started
            decision = nothing(f"policy {query.policy} is not there: {error}")
        child_process.write_reply(sink, TaskReply(decision), limit=MAX_BYTES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
