"""Send a model to a new process.

In: a model between two steps, and batches that it was called with. Out: a process that has a copy of it, with the
script's own classes, and looks for a split (prep/searching.py). Tables go without their rows, which stand-ins make up,
and the model without hooks: the loop's own are on it. Tensors go to the device they were on, in that process's own
context, if there is room. Called by: prep/beside.py.
"""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import nn

from springtide import config
from springtide.embedding.table_weight import TableWeight
from springtide.prep import searching, standins
from springtide.prep.searching import Question

_RUN = "import sys; from springtide.prep import sending; sending.main(*map(int, sys.argv[1:]))"
CONTEXT_BYTES = 1 << 30  # of a GPU: what a second process takes of it for itself, about
LEFT_OUT = frozenset({"forward", "springtide_binding"})
KEPT = frozenset({"_parameters", "_buffers", "_modules", "training"})
"""What of nn.Module's own attributes goes along with a table, or with the model itself: no hooks."""


class NoRoom(Exception):
    """A GPU cannot hold the model twice."""


def start(question: Question, answer: int) -> subprocess.Popen[bytes]:
    """A process that writes its answer to `answer`. Raises whatever a model raises that cannot be pickled."""
    _check_room(question.model)
    asked = os.memfd_create("springtide-model", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(asked), "wb") as file:
            torch.save(question, file, pickle_module=_pickling(question.model))
        os.lseek(asked, 0, os.SEEK_SET)
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-c", _RUN, str(asked), str(answer), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[asked, answer],
            env=config.child_environment({}, {"OMP_NUM_THREADS": "1"}, {"PYTHONPATH": paths}),
        )  # fmt: skip
    finally:
        os.close(asked)


def main(asked: int, answer: int, parent: int) -> None:
    """What that process does."""

    def question() -> Question:
        with os.fdopen(asked, "rb") as file:
            sent: Question = torch.load(file, weights_only=False)  # our parent's, in memory that nobody else has
        return sent

    searching.live(question, answer, parent)


def _check_room(model: nn.Module) -> None:
    parts = [one for one in (*model.parameters(), *model.buffers()) if one.device.type == "cuda"]
    if torch.cuda.is_initialized():
        wanted = CONTEXT_BYTES + 2 * sum(one.numel() * one.element_size() for one in parts)
        free, _ = torch.cuda.mem_get_info()
        if free < wanted:
            raise NoRoom(f"the GPU has {free / 1e9:.1f} GB left, wanted {wanted / 1e9:.1f}")


def _pickling(model: nn.Module) -> Any:
    """What torch.save takes its pickler from."""
    tables = {id(part) for table in standins.tables(model).values() for part in table.modules()}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, item: Any) -> Any:
            if id(item) in tables:
                return _table, (type(item), _state(item, rows=False))
            if isinstance(item, TableWeight):  # held beside its module too, as for a penalty
                return _weight, (_Shape.of(item),)
            if item is model:
                return _again, (type(item), _state(item, rows=True))
            return super().reducer_override(item)

    return SimpleNamespace(__name__="cloudpickle", Pickler=Pickler)


class _Bound(NamedTuple):
    """In place of a table's binding to servers: what a stand-in asks of it."""

    dtype: torch.dtype


class _Shape(NamedTuple):
    """In place of a tensor whose values do not matter."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> "_Shape | None":
        return None if tensor is None else cls(tuple(tensor.shape), tensor.dtype, tensor.device)

    def zeros(self) -> torch.Tensor:
        """As many as there were, in the memory of one."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.sizes)


def _state(module: nn.Module, *, rows: bool) -> dict[str, Any]:
    own = vars(nn.Module()).keys() - KEPT
    found = {name: value for name, value in vars(module).items() if name not in own | LEFT_OUT}
    if not rows:
        for kind in ("_parameters", "_buffers"):
            found[kind] = {name: _Shape.of(one) for name, one in found[kind].items()}
        if (binding := vars(module).get("springtide_binding")) is not None:
            found["springtide_binding"] = _Bound(binding.dtype)
    return found


def _again(kind: type, state: dict[str, Any]) -> Any:
    made: nn.Module = object.__new__(kind)
    nn.Module.__init__(made)
    vars(made).update(state)
    return made


def _weight(shape: _Shape) -> nn.Parameter:
    return nn.Parameter(shape.zeros())


def _table(kind: type, state: dict[str, Any]) -> Any:
    for name, wrap in (("_parameters", nn.Parameter), ("_buffers", torch.Tensor.detach)):
        state[name] = {each: None if one is None else wrap(one.zeros()) for each, one in state[name].items()}
    return _again(kind, state)
