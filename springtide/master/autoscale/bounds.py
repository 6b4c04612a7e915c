"""Applies new bounds that a user sets while the job runs.

In: `messages.BoundsRequest`, from `launch.k8s.pod_requests`. Out: an event with the new bounds, then events that move
the job into them. Next: `job.scaling.plan` stores the bounds with the journal. `master.autoscale.loop` and
`master.autoscale.online_loop` respect them.
"""

from springtide import errors
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.master.core.context import MasterContext
from springtide.master.core.record import JobRecord
from springtide.rpc.messages import messages


def answer(context: MasterContext, request: messages.BoundsRequest) -> messages.Ok:
    """Apply new bounds. Raise BadInput if the job does not plan its numbers of roles."""
    state = context.record.state
    if not (state.spec.planning.on or state.spec.online.on):
        raise errors.BadInput(
            f"job {state.spec.name} has the numbers of workers and servers that it was given: nobody plans it within "
            "bounds; `springtide scale` changes them"
        )
    _check(context.record, request)
    context.apply(events.BoundsChanged(request.workers, request.servers, request.why))
    return messages.Ok()


def _check(record: JobRecord, request: messages.BoundsRequest) -> None:
    """Raise BadInput for bounds that the job cannot satisfy, before any of them is applied."""
    state = record.state
    if state.phase is JobPhase.DRAINING:
        raise errors.BadInput(f"job {state.spec.name} is draining: {state.why}")
    if request.workers is not None:
        record.book.check_group(request.workers[0] + state.planned.extra)
    if request.servers is None:
        return
    least, most = request.servers
    if least > state.spec.slots:
        raise errors.BadInput(f"{least} servers for {state.spec.slots} slots: at most one server a slot")
    if not (least <= state.servers_wanted <= most or state.bsp.in_step or state.safety.placed):
        raise errors.BadInput(f"job {state.spec.name} is starting: its servers are not ready yet; try again")
