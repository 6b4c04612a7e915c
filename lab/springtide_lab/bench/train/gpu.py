"""Train a DLRM with all rows in GPU memory, against nn.EmbeddingBag, a fused loop by hand, and random rows.

Needs a CUDA GPU. In: gpu_loops.py, and gpu_caches.py for a part of the rows in GPU memory. Out: ratios of samples/s by
batch size, lookup speed against a device copy, and device synchronizations per step.
"""

import contextlib
import statistics
import warnings
from collections.abc import Callable

import torch

from springtide import errors
from springtide.embedding.device import kernel_registry
from springtide.embedding.device.kernels import IdBatch
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report
from springtide_lab.bench.train import gpu_caches, gpu_loops
from springtide_lab.bench.train.gpu_loops import NO_CACHE, NO_SERVERS, ONE_SERVER, GpuClicks, GpuWorkload, Train

BATCHES = (4096, 16384, 65536)
UNCACHED_BATCH = 16384
NOT_BUILT = ("gpu_cache_vs_cpu_cache",)
COUNTED_STEPS = 20


def bench(options: Options) -> report.Result:
    if not torch.cuda.is_available():
        raise errors.BadInput("bench gpu needs a CUDA GPU and a CUDA build of PyTorch, and there is none here")
    rows, rounds, seconds = (2_000, 2, 0.2) if options.quick else (200_000, 7, 1.0)
    measured: dict[int, harness.Rounds] = {}
    syncs = 0.0
    for batch in BATCHES[:2] if options.quick else BATCHES:
        work = GpuWorkload(rows=rows, dim=64, batch=batch)
        data = GpuClicks(work)
        with contextlib.ExitStack() as stack:
            contestants = gpu_loops.CONTESTANTS | (gpu_loops.UNCACHED if batch == UNCACHED_BATCH else {})
            loops = {name: make(work, data, stack) for name, make in contestants.items()}
            timed = {name: gpu_loops.timed(train, batch, seconds) for name, train in loops.items()}
            measured[batch] = harness.alternate(timed, rounds=rounds, label=f"batch {batch}")
            syncs = max(syncs, *(sync_calls(loops[name]) for name in (ONE_SERVER, NO_SERVERS)))
            del loops, timed
        torch.cuda.empty_cache()
    parts = {}
    for name, case in gpu_caches.CASES.items():
        parts[name] = gpu_caches.measure(case, rows=rows, rounds=rounds, seconds=seconds, quick=options.quick)
        torch.cuda.empty_cache()
    copies = {dim: gather_vs_copy(dim, rounds=rounds) for dim in (64, 16)}
    return report.Result(
        goals=(*_goals(measured, copies, syncs), *gpu_caches.goals(parts)),
        rounds=rounds,
        columns=("samples/s", *(f"batch {batch}" for batch in measured)),
        rows=tuple((name, *(found.median(name) for found in measured.values())) for name in gpu_loops.CONTESTANTS),
        notes=(
            f"{torch.cuda.get_device_name()}, {torch.version.cuda}; ratios of a bsp job with one server, whose rows "
            "are in GPU memory",
            f"{NO_CACHE}: {measured[UNCACHED_BATCH].median(NO_CACHE):,.0f} samples/s at batch {UNCACHED_BATCH}",
            *gpu_caches.notes(parts),
            f"not built yet, so not measured: {', '.join(NOT_BUILT)}",
        ),
        details={"gpu": torch.cuda.get_device_name()},
    )


def _goals(
    measured: dict[int, harness.Rounds], copies: dict[int, harness.Ratio], syncs: float
) -> tuple[report.Goal, ...]:
    def ratio(batch: int, peer: str, ours: str = ONE_SERVER) -> harness.Ratio:
        return measured[batch].ratio(ours, peer)

    return (
        report.goal("cached_vs_embeddingbag", ratio(4096, "EmbeddingBag"), target=1.5),
        report.goal("cached_vs_fused", ratio(16384, "fused"), target=0.95),
        report.goal("cached_vs_fake_rows", ratio(16384, "random rows"), target=0.75),
        report.goal("uncached_vs_embeddingbag", ratio(UNCACHED_BATCH, "EmbeddingBag", NO_CACHE), target=0.5),
        report.goal("hit_gather_vs_copy", copies[64], target=0.75),
        report.goal("hit_gather_vs_copy_dim_16", copies[16], target=0.5),
        report.goal("sync_calls", syncs, target=0, better="lower"),
    )


def sync_calls(train: Train) -> float:
    """Count the device synchronizations of a step that torch knows of."""
    train(5)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            train(COUNTED_STEPS)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught) / COUNTED_STEPS


def gather_vs_copy(dim: int, *, rounds: int, rows: int = 4_000_000, count: int = 1_000_000) -> harness.Ratio:
    """Compare the bytes/s of a lookup of random rows with those of a device copy."""
    weights = torch.randn(rows, dim, device="cuda")
    ids = torch.randint(0, rows, (count,), device="cuda")
    feature = torch.tensor([[0, count, 1, 1, 1, 0, rows, -1, 0, 0]], device="cuda")
    batch, status = IdBatch(ids, feature, (count,), count, 1), torch.zeros(1, device="cuda")
    kernels = kernel_registry.of_device("cuda")
    source, target = torch.randn(count, dim, device="cuda"), torch.empty(count, dim, device="cuda")

    def look_up() -> None:
        kernels.pool(kernels.keys(batch, status), batch, weights, None, mean=False, read_skipped=False)

    pairs = [(_device_seconds(lambda: target.copy_(source)), _device_seconds(look_up)) for _ in range(rounds)]
    return harness.spread([copy / own for copy, own in pairs])


def _device_seconds(run: Callable[[], object], *, times: int = 20) -> float:
    run()
    spans = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):  # repeat so often that the cost of one kernel launch does not matter
            run()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end) / times)
    return float(statistics.median(spans)) / 1e3
