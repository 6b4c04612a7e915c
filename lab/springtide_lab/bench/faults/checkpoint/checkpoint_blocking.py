"""How long `Checkpointer.save` holds its caller: 1 GB and 2 GB of state, against what two threads need to copy it.

In: the same state saved by ours, torch.save, torch's async_save and DLRover's flash save, in turn. Out: the goal
`blocking_vs_memcpy` (the worse of both sizes) and rows for `bench checkpoint`. The sides:
faults/checkpoint/blocking.py.
"""

import contextlib
import functools
import pathlib

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, progress, report, versions

LOCAL = ("memcpy", "springtide", "torch.save", "async_save")


def blocking(options: Options) -> report.Result:
    """Each size by itself, so that memory is there for it."""
    sizes, rounds = ((0.05,), 2) if options.quick else ((1.0, 2.0), 5)
    notes: list[str] = []
    measured = {size: saved(size, rounds, options, notes) for size in sizes}
    ratio = report.worst([one.ratio("springtide", "memcpy") for one in measured.values()], better="lower")
    rows = tuple(
        (f"{way}, {size:g} GB", one.median(way), size * 1.073741824 / one.median(way))
        for size, one in measured.items()
        for way in one.figures
    )
    return report.Result(
        goals=(report.goal("blocking_vs_memcpy", ratio, target=1.15, better="lower"),),
        rounds=rounds, columns=("a save holds its caller", "seconds", "GB/s"), rows=rows, notes=tuple(notes),
    )  # fmt: skip


def saved(gigabytes: float, rounds: int, options: Options, notes: list[str]) -> harness.Rounds:
    """All ways in turn; the first two rounds make pages and do not count."""
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(
            peers.Worker("faults/checkpoint/blocking", options={"kind": "local", "gigabytes": gigabytes})
        )
        sides = [(way, local) for way in LOCAL]
        if not options.quick:
            try:
                python = peers.environment_of(
                    "dlrover with torch", ".venv-dlrover-torch", versions.DLROVER, first=(versions.TORCH,)
                )
                sides.append(("dlrover", dlrover(stack, python, gigabytes)))
            except peers.PeerFailed as error:
                notes.append(f"dlrover was not measured: {error}")
                progress.say(notes[-1])
        contestants = [
            harness.Contestant(name=way, measure=functools.partial(worker.figure, way=way)) for way, worker in sides
        ]
        return harness.alternate(contestants, rounds=rounds, warmup=2, label=f"saves of {gigabytes:g} GB")


def dlrover(stack: contextlib.ExitStack, python: pathlib.Path, gigabytes: float) -> peers.Worker:
    """DLRover with its first save made; it is tried twice, since its saver's process now and then does not come up."""
    for last in (False, True):
        options = {"kind": "dlrover", "gigabytes": gigabytes}
        try:
            with contextlib.ExitStack() as own:
                worker = own.enter_context(peers.Worker("faults/checkpoint/blocking", python=python, options=options))
                worker.figure(way="dlrover")
                stack.push(own.pop_all())
                return worker
        except peers.PeerFailed as error:
            if last:
                raise
            progress.say(f"dlrover is tried once more: {error}")
    raise AssertionError("one of two tries returns or raises")
