"""Time lookup, backward and update in nn.EmbeddingBag (sparse) or FBGEMM's TBE, for many bags of one id each.

Options: kind, file (int64 ids), shape [batches, tables, batch], rows, dim, threads, lr. A round takes seconds and
returns million rows per second.
"""

import itertools
from collections.abc import Callable
from typing import Any

import line
import torch

PACKAGES = ("torch", "fbgemm-gpu-cpu")

Step = Callable[[torch.Tensor], None]


def embedding_bag(options: dict[str, Any]) -> Step:
    """Return a step with one nn.EmbeddingBag per table and torch's sparse SGD."""
    tables = [
        torch.nn.EmbeddingBag(options["rows"], options["dim"], mode="sum", sparse=True)
        for _ in range(options["shape"][1])
    ]
    optimizer = torch.optim.SGD([table.weight for table in tables], lr=options["lr"])
    offsets = torch.arange(options["shape"][2])
    gradient = torch.full((options["shape"][2], options["shape"][1] * options["dim"]), 0.01)

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        out = torch.cat([table(ids[index], offsets) for index, table in enumerate(tables)], dim=1)
        torch.autograd.backward(out, gradient)
        optimizer.step()

    return step


def tbe(optimizer: str) -> Callable[[dict[str, Any]], Step]:
    """Return a function that creates a step with one fused FBGEMM module, which updates tables in its backward pass."""

    def make(options: dict[str, Any]) -> Step:
        from fbgemm_gpu import split_embedding_configs
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops

        _, count, batch = options["shape"]
        place = (ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
        module = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(options["rows"], options["dim"], *place)] * count,
            optimizer=split_embedding_configs.EmbOptimType[optimizer],
            learning_rate=options["lr"],
        )
        module.init_embedding_weights_uniform(-0.01, 0.01)
        offsets = torch.arange(count * batch + 1)
        gradient = torch.full((batch, count * options["dim"]), 0.01)

        def step(ids: torch.Tensor) -> None:
            torch.autograd.backward(module(ids.reshape(-1), offsets), gradient)

        return step

    return make


KINDS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "embeddingbag_sgd": embedding_bag,
    "tbe_sgd": tbe("EXACT_SGD"),
    "tbe_rowwise_adagrad": tbe("EXACT_ROWWISE_ADAGRAD"),
}


def start(options: dict[str, Any]) -> line.Round:
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    batches, tables, batch = options["shape"]
    ids = torch.from_file(options["file"], size=batches * tables * batch, dtype=torch.int64)
    ids = ids.reshape(batches, tables, batch)
    step = KINDS[options["kind"]](options)
    following = itertools.cycle(ids)

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        done = line.repeat(lambda: step(next(following)), request["seconds"])
        return {"figure": done.times * tables * batch / done.seconds / 1e6}

    return measure
