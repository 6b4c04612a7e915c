"""Train the DLRM of `bench train` with TorchRec: EmbeddingBagCollection, DistributedModelParallel, gloo, world size 1.

Options: rows, dim, batch, batches, threads, lr, file (int64 ids), shape [batches, tables, batch], port, and the layer
widths of the model. A round takes seconds and returns samples/s. The script runs in the peers' environment, without
Springtide.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import line
import torch
from torch import distributed, nn

PACKAGES = ("torchrec", "fbgemm-gpu-cpu")

DENSE = 13


def mlp(inputs: int, widths: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, width in enumerate(widths):
        layers.append(nn.Linear(inputs, width))
        if last_relu or number + 1 < len(widths):
            layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """DLRM of the zoo with TorchRec's tables: bottom MLP, dot products of all pairs, top MLP."""

    pairs: torch.Tensor

    def __init__(self, tables: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        dim, vectors = options["dim"], options["shape"][1] + 1
        self.tables = tables
        self.vectors, self.dim = vectors, dim
        self.bottom = mlp(DENSE, [*options["bottom"], dim], last_relu=True)
        self.top = mlp(dim + vectors * (vectors - 1) // 2, [*options["top"], 1], last_relu=False)
        row, column = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("pairs", row * vectors + column, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: Any) -> torch.Tensor:
        bottom = self.bottom(dense)
        pooled = self.tables(sparse).values().reshape(len(dense), self.vectors - 1, self.dim)
        vectors = torch.cat([bottom.unsqueeze(1), pooled], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logit: torch.Tensor = self.top(torch.cat([bottom, dots], dim=1)).squeeze(1)
        return logit


def start(options: dict[str, Any]) -> line.Round:
    import torchrec
    from torch.distributed import optim
    from torchrec.distributed import DistributedModelParallel

    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options["port"]))
    distributed.init_process_group("gloo", rank=0, world_size=1)
    batches, tables, batch = options["shape"]
    names = [f"field{number}" for number in range(tables)]
    collection = torchrec.EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingBagConfig(
                name=name, embedding_dim=options["dim"], num_embeddings=options["rows"], feature_names=[name]
            )
            for name in names
        ],
    )
    in_backward: Any = optim._apply_optimizer_in_backward  # type: ignore[attr-defined]
    in_backward(torch.optim.SGD, collection.parameters(), {"lr": options["lr"]})
    model = DistributedModelParallel(DLRM(collection, options), device=torch.device("cpu"))
    dense_params = [param for name, param in model.named_parameters() if "tables" not in name]
    optimizer = torch.optim.SGD(dense_params, lr=options["lr"])
    ids = torch.from_file(options["file"], size=batches * tables * batch, dtype=torch.int64).reshape(batches, -1)
    lengths = torch.ones(tables * batch, dtype=torch.int32)
    made = [
        (
            torch.randn(batch, DENSE),
            torchrec.KeyedJaggedTensor(keys=names, values=one.clone(), lengths=lengths),
            (torch.rand(batch) < 0.3).float(),
        )
        for one in ids
    ]
    feed = itertools.cycle(made)

    def step() -> None:
        dense, sparse, label = next(feed)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), label))
        optimizer.step()

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        done = line.repeat(step, request["seconds"])
        return {"figure": done.times * batch / done.seconds}

    return measure
