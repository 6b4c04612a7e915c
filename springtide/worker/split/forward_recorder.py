"""Record the torch calls of some forwards while the loop trains, as input for dataworker/split/split.py.

In: loop_watcher.py selects the calls of the model to record. No forward() runs twice, so its counters, state and random
draws are unaffected. Out: `book` and `logs`. Next: controller.py.
"""

import sys
import time
from typing import Any

import torch
from torch import nn

from springtide.dataworker.split.program import arguments
from springtide.dataworker.split.recorder import marked_calls, pytree
from springtide.dataworker.split.recorder.call_recorder import CallBook, CallLog, Recorder
from springtide.worker.split import lazy_leaf
from springtide.worker.split.forward_stand_in import ForwardStandIn


class Recording(ForwardStandIn):
    """Replacement of the model's `forward` while the model is observed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.book = CallBook()
        self.logs: list[CallLog] = []
        self.why = ""
        """Reason why no call can be recorded; empty if calls can be recorded."""
        self.forward_s = 0.0
        """Seconds that an unrecorded forward takes."""
        self.running = False
        """Whether an expected call is running. Reads during the call count as reads by the model."""
        self._call: arguments.ModelCall | None = None
        self._keep: bool | None = None

    def expect(self, call: arguments.ModelCall) -> None:
        """Expect the next call of the model to have this form. Reads of the batch during the call count as the
        model's.
        """
        self._call, self._keep = call, None

    def record(self, *, keep: bool) -> None:
        """Record the expected call; with `keep`, keep the values that it computes."""
        self._keep = keep

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, self._call = self._call, None
        if call is None or torch.compiler.is_compiling():
            return self.own(*args, **kwargs)
        keep, self._keep = self._keep, None
        self.running = True
        try:
            with pytree.substituted((args, call.in_order(kwargs)), lazy_leaf.behind) as (args, kwargs):
                self.why = self.why or unfit(self._model)
                timed = self.why or keep is None or not self.forward_s
                return self._timed(args, kwargs) if timed else self._recorded(args, kwargs, bool(keep))
        finally:
            self.running = False

    def _timed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        result = self.own(*args, **kwargs)
        self.forward_s = time.perf_counter() - began
        return result

    def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any], keep: bool) -> Any:
        flat, _ = pytree.flatten((args, kwargs))
        names = {id(one): name for name, one in (*self._model.named_parameters(), *self._model.named_buffers())}
        recorder = Recorder(
            self.book,
            flat,
            known=lambda tensor: names.get(id(tensor), ""),
            modules=dict(self._model.named_modules()),
            keep=keep,
        )
        with marked_calls.heard_by(recorder.call_marked), recorder:
            result = self.own(*args, **kwargs)
        self.logs.append(recorder.finish())
        return result


def unfit(model: nn.Module) -> str:
    """Return the reason why the model's calls cannot be recorded; empty if they can."""
    for path, part in model.named_modules():
        compiled = type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        if compiled or isinstance(part, torch.jit.ScriptModule):
            return f"{path or 'the model'} is compiled ({type(part).__name__}): what it does cannot be seen"
    return surrounded()


def surrounded() -> str:
    """Return the reason why the surroundings of the model prevent recording, which may change from batch to batch;
    empty if none.
    """
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a mode of torch's is on (torch.set_default_device, a profiler of operations), which sees every call"
    if _compiles():
        return "torch.compile is used in this process: what compiled code does cannot be seen"
    return ""


def _compiles() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))
