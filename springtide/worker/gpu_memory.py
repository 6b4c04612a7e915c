"""Explains why the GPU has no memory left: what uses the memory, and what to do.

In: the models that `job.prepare` has prepared (worker/setup.py). Out: one sentence, which worker/error_summary.py adds
to the error of a script.
"""

import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from springtide.domain.core.resources import show_memory
from springtide.embedding.lookup.device_tables import DeviceTables
from springtide.embedding.modules.table_weight import TableWeight

_prepared: list[Callable[[], tuple[int, int] | None]] = []
"""For each prepared model, a function that returns the bytes of the model's rows and of its dense state. The function
returns None after the model is deleted.
"""

ADVICE = {
    "rows": "give rows less GPU memory: cache='8G' in job.prepare, or springtide run --cache 8G",
    "dense": "train a smaller dense part, or an optimizer with less state such as SGD",
    "batch": "lower batch_size (accumulate=2 keeps the step), and drop outputs and losses before the next batch",
    "others": "give this worker a GPU of its own (springtide run --gpu 1), or end the other processes",
}

ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes of one GPU, divided by their use."""

    total: int
    rows: int
    dense: int
    batch: int
    cached: int
    """Free bytes that torch keeps in blocks of unsuitable sizes."""
    others: int

    def __str__(self) -> str:
        texts = {
            "rows": "rows of tables and their optimizer state",
            "dense": "dense parameters, gradients and optimizer state",
            "batch": "the batch (activations, and tensors of the script)",
            "cached": "free in torch's cache, in blocks of other sizes",
            "others": "other processes and CUDA itself",
        }
        held = [f"{show_memory(getattr(self, name))} {text}" for name, text in texts.items() if getattr(self, name)]
        largest = max(ADVICE, key=lambda name: getattr(self, name))
        return f"of {show_memory(self.total)} on the GPU: {'; '.join(held)}. To need less, {ADVICE[largest]}"


def watch(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], rows: DeviceTables | None) -> None:
    """Remember a prepared model without keeping it alive."""
    whole, own, tables = weakref.ref(model), weakref.WeakSet(optimizers), rows and weakref.ref(rows)
    # table weights use no memory
    without = {id(param) for param in model.parameters() if isinstance(param, TableWeight)}

    def count() -> tuple[int, int] | None:
        now, placed = whole(), tables and tables()
        if now is None:
            return None
        params = [param for param in now.parameters() if id(param) not in without]
        tensors = [*params, *now.buffers(), *(param.grad for param in params)]
        for optimizer in own:
            for param, state in optimizer.state.items():
                tensors += [] if id(param) in without else state.values()
        return placed.nbytes if placed else 0, sum(map(_bytes, tensors))

    _prepared[:] = [earlier for earlier in _prepared if earlier() is not None] + [count]


def explain(error: BaseException) -> str:
    """Return what uses the GPU's memory and what to do about it; return an empty string for any other error."""
    if not isinstance(error, torch.cuda.OutOfMemoryError) or not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    parts = parts_of(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), free, total)
    asked = ASKED.search(str(error))
    return f"no room for {asked[1] if asked else 'another tensor'}; {parts}"


def parts_of(allocated: int, reserved: int, free: int, total: int) -> MemoryParts:
    found = [each for count in _prepared if (each := count()) is not None]
    rows, dense = sum(rows for rows, _ in found), sum(dense for _, dense in found)
    return MemoryParts(
        total=total,
        rows=rows,
        dense=dense,
        batch=max(0, allocated - rows - dense),
        cached=reserved - allocated,
        others=max(0, total - free - reserved),
    )


def _bytes(tensor: Any) -> int:
    return tensor.untyped_storage().nbytes() if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu" else 0
