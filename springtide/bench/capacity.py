"""Which model of throughput foretells a real job with another number of workers? Kale's, Ernest's, Optimus'.

In: a real job on this machine whose workers and servers are held to fractions of a core (`quota_job.py`): as many
servers as workers, and then fewer servers than they would need; at one's own pace, and in step. Out:
`capacity_mape_async` and `capacity_mape_bsp`, the mean error of a number of workers foretold from all others, as a live
job learns it.
Everything is small: at most six workers of a seventh of a core. Made truth up to 32: sim/kale/throughput.py.
"""

import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from springtide.bench import Options, progress, quota_job, report
from springtide.bench.quota_job import QuotaJob
from springtide.domain.job import SyncMode
from springtide.domain.shape import Shape
from springtide.planning.online import judging, shapes
from springtide.planning.online.capacity import Kind, Seen
from springtide.planning.online.judging import Judged
from springtide.planning.online.shapes import SeenShape

TARGET = 0.0243
WORKER_CPU, SERVER_CPU = 0.15, 0.05  # a worker needs about a fifth of its cores at servers: one serves one and a half
SETTLE_S, MEASURE_S = 1.5, 5.0
IN_STEP_S = 24.0
"""In step everyone waits for whoever has just used up its tenth of a second: windows of 4 s are 2.5% off, and a number
foretold from the others is off by more than that. The goal wants 1%: six such windows."""
Numbers = tuple[int, int]
FULL: Mapping[SyncMode, Sequence[Numbers]] = {
    "async": ((1, 1), (2, 1), (2, 2), (3, 3), (3, 1), (4, 1), (4, 4), (5, 5)),
    "bsp": ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)),
}
QUICK: Mapping[SyncMode, Sequence[Numbers]] = {"async": ((2, 2), (2, 1), (1, 1)), "bsp": ()}
KINDS: Mapping[SyncMode, Kind] = {"async": "async", "bsp": "sync"}
NAMES = {
    "learned": "ours",
    "shared": "ours",
    "async": "Kale",
    "sync": "Kale",
    "ernest": "Ernest",
    "optimus": "Optimus",
    "optimus-async": "Optimus",
}


def bench(options: Options) -> report.Result:
    """Measure all, foretell each from the others."""
    wanted = QUICK if options.quick else FULL
    taken: dict[SyncMode, list[SeenShape]] = {}
    with tempfile.TemporaryDirectory() as name, progress.bar("shapes", total=sum(map(len, wanted.values()))) as done:
        folder = pathlib.Path(name)
        quota_job.clicks(folder)
        for sync, numbers in wanted.items():
            # in step, a job of its own for each: a group formed anew goes back to a checkpoint, which takes long here
            jobs = [numbers] if sync == "async" else [[one] for one in numbers]
            seconds = 1.5 if options.quick else MEASURE_S if sync == "async" else IN_STEP_S
            taken[sync] = [one for some in jobs if some for one in measured(folder, sync, some, seconds, done)]
    return judge(taken)


def measured(
    folder: pathlib.Path, sync: SyncMode, numbers: Sequence[Numbers], seconds: float, done: Callable[[], None]
) -> list[SeenShape]:
    """One job in each of these numbers of workers and servers."""
    wanted = [
        Shape(workers=workers, servers=servers, worker_cpu=WORKER_CPU, server_cpu=SERVER_CPU)
        for workers, servers in numbers
    ]
    found = []
    with QuotaJob(folder, wanted[0], name=f"capacity-{sync}-{wanted[0].workers}", sync=sync) as job:
        job.trains(wanted[0].workers)
        for shape in wanted:
            job.let_go()
            job.become(shape)
            time.sleep(SETTLE_S)
            since = time.time()
            time.sleep(seconds)
            found.append(SeenShape(shape.workers, shape.servers, job.rate(since, time.time())))
            done()
    return found


def judge(taken: Mapping[SyncMode, Sequence[SeenShape]]) -> report.Result:
    """Every measurement foretold from the others: by workers at a fixed ratio, and by workers and servers."""
    rows: list[tuple[str | float | None, ...]] = []
    goals: list[report.Goal] = []
    details: dict[str, object] = {}
    for sync, seen in taken.items():
        kept = [Seen(one.workers, one.throughput) for one in seen if one.workers == one.servers]
        details[sync] = [one._asdict() for one in seen]
        value = None
        if len(kept) > 2:
            found = {NAMES[each]: one for each, one in judging.left_out(KINDS[sync], kept).items()}
            value = found["ours"].mape
            rows += _rows(f"{sync}, servers = workers", found)
        if len(seen) > len(kept) > 2:
            rows += _rows(f"{sync}, any servers", {NAMES[each]: one for each, one in _left_out(seen).items()})
        name = f"capacity_mape_{sync}"
        goals.append(report.goal(name, value, target=TARGET, better="lower", why="" if value else "too few shapes"))
    speeds = ", ".join(
        f"{sync} {one.workers}+{one.servers} {one.throughput:,.0f}" for sync, some in taken.items() for one in some
    )
    return report.Result(
        goals=tuple(goals),
        rounds=1,
        columns=("job", "model", "MAPE", "largest error"),
        rows=tuple(rows),
        notes=(f"workers + servers, samples/s: {speeds}", "each foretold from all others of its kind"),
        details=details,
    )


def _rows(job: str, found: Mapping[str, Judged]) -> list[tuple[str | float | None, ...]]:
    return [(job, name, one.mape, one.worst) for name, one in found.items()]


def _left_out(seen: Sequence[SeenShape]) -> dict[shapes.Kind, Judged]:
    """Ours and Optimus' by workers and servers; Ernest's knows one number only."""
    found: dict[shapes.Kind, Judged] = {}
    kinds: tuple[shapes.Kind, ...] = ("shared", "async", "optimus-async")
    for kind in kinds:
        said = [
            shapes.fit_surface(kind, [*seen[:place], *seen[place + 1 :]])(one.workers, one.servers)
            for place, one in enumerate(seen)
        ]
        found[kind] = judging.judged(said, [one.throughput for one in seen])
    return found
