"""Training loops of one DLRM on one GPU: Springtide, nn.EmbeddingBag, a fused loop by hand, and random rows.

In: a `GpuWorkload`. Out: for each contestant, a function that trains some steps. All contestants have the same dense
layers, the same batches in pinned memory, and copy them to the GPU in the loop. Servers run in processes of their own.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import springtide as st
from springtide.domain.spec.job_spec import SyncMode
from springtide_lab.bench.core import harness, jobs

TABLES, DENSE = 26, 13
LR = 0.01
Train = Callable[[int], None]
"""Function that trains the given number of steps, without waiting for the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWorkload:
    """Sizes of the model and of a batch."""

    rows: int
    dim: int
    batch: int
    batches: int = 16
    power: int = 4
    """Ids are drawn as u**power. A higher power gives fewer rows more of the ids."""
    scattered: bool = False
    """True if frequent rows have any ids; otherwise they have the lowest ids."""
    bottom: tuple[int, ...] = (512, 256)
    top: tuple[int, ...] = (1024, 512)


class GpuClicks(Dataset[Any]):
    """Batches in pinned memory. Ids are drawn as a power of u, so that a few rows are frequent."""

    def __init__(self, work: GpuWorkload) -> None:
        self.size = work.batch
        draw = torch.Generator().manual_seed(5)
        self.made = []
        order = torch.randperm(work.rows, generator=draw) if work.scattered else None
        for _ in range(work.batches):
            dense = torch.randn(work.batch, DENSE, generator=draw)
            drawn = torch.rand(work.batch, TABLES, generator=draw).pow(work.power)
            ids = (drawn * work.rows).long().clamp_(max=work.rows - 1)
            ids = ids if order is None else order[ids]
            label = (torch.rand(work.batch, generator=draw) < 0.3).float()
            self.made.append(tuple(part.pin_memory() for part in (dense, ids, label)))

    def __len__(self) -> int:
        return len(self.made) * self.size

    def batch(self, indices: Any) -> Any:
        return self.made[int(indices[0]) // self.size]


def layers(sizes: list[int]) -> nn.Sequential:
    steps: list[nn.Module] = []
    for into, out in itertools.pairwise(sizes):
        steps += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*steps[:-1])


class Dlrm(nn.Module):
    """DLRM with dot interaction. `look_up` returns the rows of a batch, of shape [batch, tables, dim]."""

    def __init__(self, work: GpuWorkload, bags: nn.ModuleList | None = None) -> None:
        super().__init__()
        self.bags = bags
        self.bottom = layers([DENSE, *work.bottom, work.dim])
        count = TABLES + 1
        self.top = layers([count * (count - 1) // 2 + work.dim, *work.top, 1])
        lower = torch.tril_indices(count, count, -1)
        self.register_buffer("pairs", lower[0] * count + lower[1], persistent=False)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        assert self.bags is not None
        return torch.stack([bag(ids[:, i : i + 1]) for i, bag in enumerate(self.bags)], 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        x = self.bottom(dense)
        all_rows = torch.cat([x[:, None], self.look_up(ids) if rows is None else rows], 1)
        dots = torch.bmm(all_rows, all_rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)  # type: ignore[arg-type]
        out: torch.Tensor = self.top(torch.cat([x, dots], 1)).squeeze(1)
        return out


def timed(train: Train, batch: int, seconds: float) -> harness.Measure:
    """Return a function that measures samples/s over about this many seconds."""

    def measure() -> float:
        train(3)
        torch.cuda.synchronize()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            train(10)
            steps += 10
            if steps % 50 == 0:  # bounds the work that waits for the GPU
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return steps * batch / (time.perf_counter() - began)

    return measure


def to_gpu(parts: Any) -> list[torch.Tensor]:
    return [part.to("cuda", non_blocking=True) for part in parts]


def loss_of(out: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(out, label)


def ours(
    work: GpuWorkload,
    data: GpuClicks,
    stack: contextlib.ExitStack,
    *,
    servers: int = 0,
    sync: SyncMode = "bsp",
    cache: float | None = None,
) -> "JobLoop":
    """Train with `job.prepare` and row-wise Adagrad. All rows are in GPU memory, or the share `cache` of them, except
    in an async job."""
    bags = [st.EmbeddingBag(work.dim, rows=work.rows, optimizer="rowwise_adagrad") for _ in range(TABLES)]
    model: Any = Dlrm(work, nn.ModuleList(bags)).cuda()
    own = torch.optim.SGD(model.parameters(), lr=LR)
    addresses = [str(server.ask("round")["address"]) for server in jobs.start(stack, servers)]
    job = jobs.job(addresses, sync=sync) if servers else st.join()
    model, optimizer, batches = job.prepare(
        model, own, data, batch_size=work.batch, shuffle=False, epochs=1_000_000, num_workers=0, cache=cache
    )
    train = JobLoop(iter(batches), model, optimizer, bags)
    train(3)
    if any((bag.binding.tables[0].place is None) != (sync == "async") for bag in bags):
        raise st.errors.BadInput("rows are not where this benchmark measures them: see the log")
    return train


class JobLoop:
    """Training loop of a Springtide job."""

    def __init__(self, feed: Iterator[Any], model: Any, optimizer: Any, bags: list[st.EmbeddingBag]) -> None:
        self._feed, self._model, self._optimizer, self._bags = feed, model, optimizer, bags

    def __call__(self, steps: int) -> None:
        for parts in itertools.islice(self._feed, steps):
            dense, ids, label = to_gpu(parts)
            self._optimizer.zero_grad()
            loss_of(self._model(dense, ids), label).backward()
            self._optimizer.step()

    def hits(self, steps: int) -> float:
        """Train, and return the share of ids whose rows were in GPU memory."""
        before = self._counts()
        self(steps)
        found, looked_up = (now - then for now, then in zip(self._counts(), before, strict=True))
        return found / looked_up

    def _counts(self) -> tuple[int, int]:
        torch.cuda.synchronize()
        use = self._bags[0].binding.client.on_device.use()
        return use.hits, use.looked_up


def embedding_bags(work: GpuWorkload, data: GpuClicks, stack: contextlib.ExitStack) -> Train:
    """Train nn.EmbeddingBag(sparse=True) with SGD."""
    with torch.device("cuda"):
        bags = [nn.EmbeddingBag(work.rows, work.dim, mode="sum", sparse=True) for _ in range(TABLES)]
        model = Dlrm(work, nn.ModuleList(bags))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return _plain(data, model, optimizer)


def _plain(data: GpuClicks, model: Dlrm, optimizer: torch.optim.Optimizer, rows: torch.Tensor | None = None) -> Train:
    feed: Iterator[Any] = itertools.cycle(data.made)

    def train(steps: int) -> None:
        for parts in itertools.islice(feed, steps):
            dense, ids, label = to_gpu(parts)
            optimizer.zero_grad()
            loss_of(model(dense, ids, rows), label).backward()
            optimizer.step()

    return train


def fake_rows(work: GpuWorkload, data: GpuClicks, stack: contextlib.ExitStack) -> Train:
    """Train the dense layers on random rows; no lookup can be faster."""
    with torch.device("cuda"):
        model = Dlrm(work)
        rows = torch.randn(work.batch, TABLES, work.dim, requires_grad=True)
    plain = _plain(data, model, torch.optim.SGD(model.parameters(), lr=LR), rows)

    def train(steps: int) -> None:
        for _ in range(steps):
            rows.grad = None
            plain(1)

    return train


def fused(work: GpuWorkload, data: GpuClicks, stack: contextlib.ExitStack) -> Train:
    """Train one matrix of all tables by hand, with unique rows, and row-wise Adagrad in a few torch calls."""
    with torch.device("cuda"):
        model = Dlrm(work)
        table = torch.randn(TABLES * work.rows, work.dim) * 0.01
        sums = torch.zeros(TABLES * work.rows)
        starts = torch.arange(TABLES) * work.rows
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    feed: Iterator[Any] = itertools.cycle(data.made)

    def train(steps: int) -> None:
        for parts in itertools.islice(feed, steps):
            dense, ids, label = to_gpu(parts)
            optimizer.zero_grad()
            rows, inverse = torch.unique(ids + starts, return_inverse=True)
            values = table.index_select(0, rows).requires_grad_()
            looked_up = values.index_select(0, inverse.view(-1)).view(-1, TABLES, work.dim)
            loss_of(model(dense, ids, looked_up), label).backward()
            optimizer.step()
            grad = values.grad
            assert grad is not None
            sums.index_add_(0, rows, grad.square().mean(1))
            rate = LR / (sums.index_select(0, rows).sqrt() + 1e-10)
            table.index_add_(0, rows, grad * -rate[:, None])

    return train


ONE_SERVER, NO_SERVERS, NO_CACHE = "springtide, 1 server", "springtide, no servers", "springtide, async, 4 servers"
MakeLoop = Callable[[GpuWorkload, GpuClicks, contextlib.ExitStack], Train]
UNCACHED: dict[str, MakeLoop] = {NO_CACHE: functools.partial(ours, servers=4, sync="async")}
CONTESTANTS: dict[str, MakeLoop] = {
    ONE_SERVER: functools.partial(ours, servers=1),
    NO_SERVERS: ours,
    "EmbeddingBag": embedding_bags,
    "fused": fused,
    "random rows": fake_rows,
}
