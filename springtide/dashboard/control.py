"""Changes jobs for the dashboard: scales, stops, and begins a checkpoint. Only with `--allow-control`."""

from springtide import errors
from springtide.dashboard.documents import Done, ScaleOrder
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages import messages

WHY = "asked in the dashboard"


def scale(handle: JobHandle, order: ScaleOrder) -> Done:
    least = {"workers": (order.workers, 1), "servers": (order.servers, 1), "data workers": (order.data_workers, 0)}
    given = {name: count for name, (count, _) in least.items() if count is not None}
    if not given:
        raise errors.BadInput("give a number of workers, servers or data workers")
    for name, (count, fewest) in least.items():
        if count is not None and count < fewest:
            raise errors.BadInput(f"{count} {name}: expected {fewest} or more")
    handle.ask(messages.ScaleRequest(order.workers, order.servers, WHY, order.data_workers))
    return Done(what=f"{' and '.join(f'{count} {name}' for name, count in given.items())} requested")


def stop(handle: JobHandle) -> Done:
    handle.ask(messages.StopRequest(f"stopped: {WHY}"))
    return Done(what="draining: workers finish their current batch")


def checkpoint(handle: JobHandle) -> Done:
    handle.ask(messages.CheckpointRequest())
    return Done(what="a checkpoint begins")
