"""Train a click model as one worker of a bsp group without a master, with one of the systems of cache_systems.py.

Options: rank, workers, host, meeting (address of rank 0's store), addresses (of servers), stream, dim, batch,
batches, cache_share. A round takes system and steps, and returns samples/s, seconds and CPU seconds. Ask all ranks
for the same rounds.
"""

import time
from typing import Any

import line
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from springtide.domain.model.tables import OptimSpec, TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.bsp import allreduce
from springtide_lab.bench.cache import cache, cache_systems, id_streams
from springtide_lab.bench.core import jobs

PACKAGES = ("torch",)

HIDDEN, LR = 64, 0.01


class Loop:
    """The model and the group; `run` trains some steps with one of the systems."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rank, self.workers = options["rank"], options["workers"]
        torch.set_num_threads(1)
        torch.manual_seed(0)
        made = id_streams.make(options["stream"], samples=options["batches"] * options["batch"] * self.workers, seed=5)
        starts = np.concatenate([[0], np.cumsum(made.rows)[:-1]]).astype(np.int64)
        self.batches = [batch + starts for batch in made.batches(options["batch"] * self.workers)]
        self.labels = torch.rand(options["batch"]).round()
        self.model = nn.Sequential(nn.Linear(options["dim"], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.options, self.starts, self.rows = options, starts, made.rows
        self.step: dict[str, int] = {}
        self.systems: dict[str, cache_systems.System] = {}
        self.number = 0
        self.client = self.connect()
        self.group = self.meet()

    def connect(self) -> TableClient:
        """Connect to the servers."""
        addresses = [(host, int(port)) for host, port in (one.rsplit(":", 1) for one in self.options["addresses"])]
        owners = jobs.placement(len(addresses)).server_of_slot
        return TableClient.connect(
            addresses, secret=jobs.SECRET, placement=owners, epoch=1, rank=self.rank, shared_memory=False
        )

    def meet(self) -> Any:
        """Form the group of all ranks; wait until every rank has joined."""
        host, port = self.options["meeting"]
        tcp_store: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
        store = tcp_store(host, port, None, is_master=self.rank == 0, wait_for_workers=False, use_libuv=False)
        return allreduce.form_group(store, rank=self.rank, workers=self.workers, host=self.options["host"])

    def way(self, name: str) -> cache_systems.System:
        if name not in self.systems:
            first = 100 * len(self.systems)
            optim = OptimSpec(kind="sgd")
            self.client.declare(
                TableSpec(id=first + at, name=f"{name} {at}", dim=self.options["dim"], optim=optim)
                for at in range(len(self.rows))
            )
            rank = cache_systems.Rank(
                rank=self.rank,
                workers=self.workers,
                client=self.client,
                group=self.group,
                batches=self.batches,
                starts=self.starts,
                first_table=first,
                dim=self.options["dim"],
                lr=LR,
                capacity=int(self.options["cache_share"] * sum(self.rows)),
            )
            self.systems[name], self.step[name] = cache.SYSTEMS[name](rank), 0
        return self.systems[name]

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        system, name = self.way(request["system"]), request["system"]
        self.together(torch.zeros(1))
        used, began = line.cpu_s(), time.perf_counter()
        for _ in range(request["steps"]):
            self.train(system, self.step[name])
            self.step[name] += 1
        took = time.perf_counter() - began
        samples = request["steps"] * len(self.labels) * self.workers
        return {"figure": samples / took, "seconds": took, "cpu_s": line.cpu_s() - used}

    def train(self, system: cache_systems.System, step: int) -> None:
        """Train one step: read rows, run the model, sum its gradients, write row gradients, wait for all workers."""
        self.number += 1
        batch = self.batches[step % len(self.batches)][system.samples(step)]
        rows, where = np.unique(batch, return_inverse=True)
        read = torch.from_numpy(system.read(step, self.number, rows)).requires_grad_()
        pooled = functional.embedding_bag(torch.from_numpy(where.reshape(batch.shape)), read, mode="sum")
        self.optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(self.model(pooled)[:, 0], self.labels).backward()
        for param in self.model.parameters():
            assert param.grad is not None
            self.together(param.grad)
        self.optimizer.step()
        assert read.grad is not None
        system.write(step, self.number, rows, read.grad.numpy()).wait()
        backend: Any = self.client.backend
        while not backend.step_complete(self.number, 1.0):
            pass
        backend.apply_step(self.number)

    def together(self, tensor: torch.Tensor) -> None:
        self.group.allreduce([tensor]).wait()


def start(options: dict[str, Any]) -> line.Round:
    return Loop(options).run
