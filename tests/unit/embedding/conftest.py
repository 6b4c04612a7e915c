"""A model whose tables are served in this process, beside the same model in plain PyTorch."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from springtide.embedding.lookup import lookup, table_client
from springtide.embedding.modules import convert
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step.hyperparams import TableRates


class Served:
    """A model with served tables and the loop's end of a step: gradients pushed, dense parameters stepped."""

    def __init__(
        self, model: nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer], servers: int = 1
    ) -> None:
        self.model = model
        self.client = table_client.TableClient.local(slots=64, seed=7, servers=servers)
        self.lookups = lookup.Lookups(self.client)
        self.tables = convert.convert(model, self.lookups)
        self.optimizer = make_optimizer(model.parameters())
        self.rates = TableRates([self.optimizer], self.tables)
        self.stepped = [JobOptimizer(self.optimizer, lambda _: None, fixed=False)]
        self.client.declare([table.spec for table in self.tables])
        for table in self.tables:
            for keys, rows in table.first_rows():
                self.client.assign(table.name, keys, rows)
        self.steps = 0

    def step(self) -> int:
        """Push pending gradients like job.prepare's optimizer; return the number of parts."""
        self.steps += 1
        parts = self.lookups.pending_parts()
        if parts:
            self.client.push(parts, step=self.steps, hyper=self.rates.now(self.stepped)).wait()
        self.lookups.clear()
        self.optimizer.step()
        return len(parts)


class Pair:
    """The same model twice: `served` and plain `torch`."""

    def __init__(
        self, model: nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer], servers: int = 1
    ) -> None:
        self.plain = copy.deepcopy(model)
        self.plain_optimizer = make_optimizer(self.plain.parameters())
        self.served = Served(model, make_optimizer, servers)

    def train(self, loss: Callable[[nn.Module], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of both; their losses."""
        losses = []
        for model, optimizer, step in (
            (self.served.model, self.served.optimizer, self.served.step),
            (self.plain, self.plain_optimizer, self.plain_optimizer.step),
        ):
            optimizer.zero_grad()
            value = loss(model)
            value.backward()
            step()
            losses.append(value.detach())
        return losses[0], losses[1]

    def assert_same(self, tolerance: float = 1e-6) -> None:
        """Both models hold the same weights."""
        ours, theirs = self.served.model.state_dict(), self.plain.state_dict()
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(
                ours[name], theirs[name], rtol=1e-5, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture(scope="session")
def make_pair():
    return lambda model, make_optimizer=sgd, servers=1: Pair(model, make_optimizer, servers)


@pytest.fixture(scope="session")
def make_served():
    return lambda model, make_optimizer=sgd, servers=1: Served(model, make_optimizer, servers)
