"""Measure the cost of checkpoints, for a job that saves itself while training, and for the caller of
`Checkpointer.save`.

Out: the goals and rows of both parts, measured one after the other. Next: checkpoint_blocking.py.
"""

import contextlib
import functools
import itertools
import statistics
import tempfile
from dataclasses import dataclass
from typing import Any

import psutil

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report, versions
from springtide_lab.bench.train import train

LOCAL = ("memcpy", "springtide", "torch.save", "async_save")


def blocking(options: Options) -> report.Result:
    """Measure how long a save blocks its caller. Measure one size at a time, because several sizes at once need too
    much memory.
    """
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
        rounds=rounds,
        columns=("a save holds its caller", "seconds", "GB/s"),
        rows=rows,
        notes=tuple(notes),
    )


def saved(gigabytes: float, rounds: int, options: Options, notes: list[str]) -> harness.Rounds:
    """Measure all ways to save in turn. The first two rounds do not count, because they allocate pages."""
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(
            peers.Worker("faults/checkpoint_blocking", options={"kind": "local", "gigabytes": gigabytes})
        )
        sides = [(way, local) for way in LOCAL]
        if not options.quick:
            with peers.optional("dlrover", notes):
                python = peers.environment_of(
                    "dlrover with torch", ".venv-dlrover-torch", versions.DLROVER, first=(versions.TORCH,)
                )
                given = {"kind": "dlrover", "gigabytes": gigabytes}
                theirs = stack.enter_context(peers.Worker("faults/checkpoint_blocking", python=python, options=given))
                theirs.figure(way="dlrover")  # fails if DLRover's saver process has not started
                sides.append(("dlrover", theirs))
        ways = {way: functools.partial(worker.figure, way=way) for way, worker in sides}
        return harness.alternate(ways, rounds=rounds, warmup=2, label=f"saves of {gigabytes:g} GB")


EVERY_S = 30.0
SIZES_MB = (1024, 4096, 8192)
LEAST_MB = 256
BLOCKED = ("pull_wait_s", "push_wait_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Step times during one full save, and the save itself."""

    p99_s: float
    longest_without_s: float
    longest_s: float
    save_s: float
    cpu_s: float
    gigabytes: float

    @property
    def ratio(self) -> float:
        return self.longest_s / self.p99_s


def saving(options: Options) -> report.Result:
    sizes = (32, 64) if options.quick else sizes_for(psutil.virtual_memory().available)
    stalls = []
    share: float | None = None
    rows: list[report.Cells] = []
    for size in sizes:
        with started(options, size) as (server, worker):
            harness.say(f"a full save of {size} MB of tables beside the loop")
            stalls.append(stall(options, server, worker))
            if size == sizes[0]:
                harness.say("checkpoints every 30 s, and none, in turn")
                share, rows = cost_share(options, server, worker)
    for one in stalls:
        of = f"tables of {one.gigabytes:.2f} GB"
        rows += [
            (f"{of}: p99 step", one.p99_s, None),
            (f"{of}: longest gap without a save", one.longest_without_s, None),
            (f"{of}: longest gap while saving", one.longest_s, None),
            (f"{of}: the save", one.save_s, one.gigabytes / one.save_s),
            (f"{of}: its CPU", one.cpu_s, None),
        ]
    missing = [size for size in SIZES_MB if not options.quick and size not in sizes]
    return report.Result(
        goals=(
            report.goal("cost_share", share, target=0.03, better="lower"),
            report.goal("stall_vs_p99_step", max(one.ratio for one in stalls), target=1.5, better="lower"),
        ),
        rounds=len(stalls),
        columns=("a job that saves itself", "seconds", "GB/s"),
        rows=tuple(rows),
        notes=(f"no room for {missing} MB of tables beside their copy: the largest is {sizes[-1]} MB",)
        if missing
        else (),
    )


@contextlib.contextmanager
def started(options: Options, megabytes: int) -> Any:
    """Start a server with `megabytes` MB of rows, and a worker whose training loop has warmed up."""
    sizes = train.sizes_of(options)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder.absolute()))
        server = stack.enter_context(
            peers.Worker("core/server_process", options={"index": 0, "folder": folder, "megabytes": megabytes})
        )
        worker = train.trainer(stack, server, sizes)
        worker.ask("round", seconds=0.3 if options.quick else 3.0)
        yield server, worker


def stall(options: Options, server: peers.Worker, worker: peers.Worker) -> Stall:
    """Measure step times without a save, then during a save."""
    quiet_s = 0.5 if options.quick else 10.0
    steps = sorted(length for _, length in gaps(worker.ask("round", seconds=quiet_s, times=True)["times"]))
    server.ask("round", what="save", after_s=0.1)
    beside: list[tuple[float, float]] = []
    runs = 1.0
    while runs:  # train until the save has ended
        beside += gaps(worker.ask("round", seconds=quiet_s / 2, times=True)["times"])
        runs = server.figure(what="saving")
    saved = server.ask("round", what="saved")
    during = [length for at, length in beside if at >= saved["began"] and at - length <= saved["ended"]]
    return Stall(
        p99_s=steps[int(0.99 * len(steps))],
        longest_without_s=steps[-1],
        longest_s=max(during or [length for _, length in beside]),
        save_s=saved["figure"],
        cpu_s=saved["cpu_s"],
        gigabytes=saved["bytes"] / 1e9,
    )


def gaps(times: list[float]) -> list[tuple[float, float]]:
    """Return the end of each step, and the seconds between it and the end of the previous step."""
    return [(after, after - before) for before, after in itertools.pairwise(times)]


def cost_share(options: Options, server: peers.Worker, worker: peers.Worker) -> tuple[float, list[report.Cells]]:
    """Alternate rounds of 30 s with and without a checkpoint; return the checkpoint's share of the cost, and rows."""
    seconds, rounds = (1.0, 2) if options.quick else (EVERY_S, 3)
    costs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for turn in range(2 * rounds):
        saves = turn % 2 == 1
        before = server.ask("round")["cpu_s"]
        if saves:
            server.ask("round", what="save", after_s=seconds / 10)
        answer = worker.ask("round", seconds=seconds)
        saved = server.ask("round", what="saved") if saves else {"cpu_s": 0.0, "bytes": 0}
        costs[saves].append(
            {
                "cpu": answer["cpu_s"] + server.ask("round")["cpu_s"] - before - saved["cpu_s"],
                "blocked": sum(answer["spent"][name] for name in BLOCKED),
                "saver": saved["cpu_s"],
                "megabytes": saved["bytes"] / 1e6,
                "samples/s": answer["figure"],
            }
        )
    middle = {
        saves: {part: statistics.median(one[part] for one in costs[saves]) for part in costs[saves][0]}
        for saves in costs
    }
    on, off = middle[True], middle[False]
    blocked = max(0.0, on["blocked"] - off["blocked"])
    share = (on["saver"] + blocked) / (off["cpu"] + off["blocked"])
    return share, [
        (f"CPU of the job in {seconds:g} s", off["cpu"], None),
        ("blocked without checkpoints", off["blocked"], None),
        (f"CPU of a checkpoint of {on['megabytes']:.0f} MB", on["saver"], None),
        ("blocked more with one", blocked, None),
    ]


def sizes_for(available: int) -> tuple[int, ...]:
    """Return the table sizes in MB that fit into memory."""
    return tuple(size for size in SIZES_MB if fits(size, available)) or (LEAST_MB,)


def fits(megabytes: int, available: int) -> bool:
    """Return True if tables of this size and their copy fit into the available bytes."""
    return available > 2.3 * megabytes * 2**20 + 2**31


def bench(options: Options) -> report.Result:
    parts = (saving(options), blocking(options))
    return report.Result(
        goals=tuple(goal for part in parts for goal in part.goals),
        rounds=max(part.rounds for part in parts),
        columns=("what", "seconds", "GB/s"),
        rows=tuple(row for part in parts for row in part.rows),
        notes=tuple(note for part in parts for note in part.notes),
    )
