"""Observes some batches of a loop: the model's arguments, its torch calls, and the leaves that the loop itself
reads.

In: batches that the loop has received, and calls of the model. Out: a `ModelCall`, recorded forwards (no forward
runs twice), and an estimate of the movable time; or the reason why no split is possible. Once data workers are
wanted, the model's arguments are placeholders, which reveal every read outside the model. Next: controller.py.
"""

import abc
import copy
import functools
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.dataworker.split.program import arguments, payload
from springtide.dataworker.split.recorder import marked_calls, pytree
from springtide.dataworker.split.recorder.call_recorder import CallBook, CallLog, Recorder
from springtide.worker.split import received_batches

BATCHES = 4
"""Number of batches to observe. The first batch shows the model's arguments, and the later batches show how their
leaves are used.
"""
PATIENCE = 16
"""The watcher gives up after this many batches without a call of the model."""
NOT_CALLED = (
    "model(...) was not called in training mode with the current batch, or the model is compiled (torch.compile), "
    "which keeps it whole"
)
TOO_FEW = f"the loop has had fewer than {BATCHES} batches, too few to see how it calls its model"
PACKAGE = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
EVERY = 16
"""The watcher times every batch whose number is a multiple of this number. Timing every batch would be slow, because
the hooks cost microseconds for each module.
"""


class Watching:
    """Observer of one model, from `begin` until it is `ready`."""

    def __init__(self, model: nn.Module) -> None:
        self.call: arguments.ModelCall | None = None
        self.seen = 0
        """Number of batches with an observed call."""
        self.touched: set[arguments.Path] = set()
        """Leaves that code outside the model has read."""
        self.why = ""
        """Reason why the model cannot be split; empty while there is none."""
        self.place = ""
        """File and line of the call in the user's code."""
        self.begun = self.ready = False
        self.eager = False
        """Whether the model was seen to run uncompiled."""
        self._model = model
        self._batch: Any = None
        self._uncounted = False
        """Whether no call with the current batch was counted yet."""
        self._handed = 0
        self._hook: Any = None
        self._recording: Recording | None = None
        self._looking = True

    def begin(self, *, looking: bool = False) -> None:
        """Observe from the next batch on. With `looking`, only observe how the model is called."""
        if not self.begun:
            self.begun = True
            self._hook = self._model.register_forward_pre_hook(self._called, with_kwargs=True)
        if self._looking and not looking and not self.ready:
            self._looking, self._handed = False, 0
            self._recording = Recording(self._model)

    @property
    def recorded(self) -> "Recording | None":
        return self._recording

    @property
    def lacking(self) -> str:
        """Return what the observations so far lack; empty if they suffice."""
        if self.ready:
            return ""
        return NOT_CALLED if self.call is None and self._handed >= BATCHES else TOO_FEW

    def end(self, why: str = "") -> None:
        self.why = self.why or why
        self.begun = self.ready = True
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._recording is not None:
            self._recording.remove()

    def hand_out(self, batch: Any) -> Any:
        if not self.begun or self.ready:
            return batch
        self._handed += 1
        self._batch, self._uncounted = batch, True
        if self.call is not None and not self._looking:
            places = {path: functools.partial(self._stand_in, path) for path in whole_leaves(self.call)}
            self._batch = payload.replaced(self._batch, places)
        return self._batch

    def on_batch_done(self) -> None:
        self._batch, self._uncounted = None, False
        if self.begun and not self.ready:
            if self.why or self.seen == BATCHES:
                self.end()
            elif self._handed >= PATIENCE and not (self._looking and self.call is not None):
                self.end(NOT_CALLED)

    def _stand_in(self, path: arguments.Path, leaf: Any) -> Any:
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.device.type != "cpu":
            return leaf

        def read() -> torch.Tensor:
            if not self._recording or not self._recording.running:
                self.touched.add(path)
            return leaf

        return received_batches.Absent(tuple(leaf.shape), leaf.dtype, read)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or (self._looking and self.call is not None):
            return
        if module.training and self._batch is not None:
            self.eager = True
            if self._observe_call(args, kwargs) and self._recording is not None:
                assert self.call is not None
                self._recording.expect(self.call)
                if self._uncounted:
                    self.seen, self._uncounted = self.seen + 1, False  # one observed call per batch is enough
                    self._recording.record(keep=self.seen == BATCHES)

    def _observe_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if self.why:
            return False
        if self.call is not None:
            if self.call.fits(self.call.find(self._batch), args, kwargs):
                return True
            if self._uncounted:
                self.why = f"model(...) is not called in the same way with every batch ({users_line()})"
            return False
        self.place = users_line()
        try:
            self.call = arguments.trace(self._batch, args, kwargs)
        except arguments.Computed as computed:
            self.why = (
                f"{computed} of model(...) is not a part of the batch, because the loop computes it ({self.place}). "
                "Do it in forward(), or in the data set"
            )
            return False
        if not self.call.leaves():
            self.why = f"model(...) gets no part of the batch ({self.place})"
        return not self.why


def whole_leaves(call: arguments.ModelCall) -> list[arguments.Path]:
    """Return the leaves of the batch that reach the model unchanged, if the loop makes no views of them."""
    viewed = {leaf.route.path for leaf in call.leaves() if leaf.route.view}
    paths = dict.fromkeys(leaf.route.path for leaf in call.leaves() if not leaf.route.view)
    return [path for path in paths if path not in viewed]


def users_line() -> str:
    """Return file and line of the innermost frame outside torch and Springtide."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        if not path.startswith((PACKAGE, TORCH)):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class ForwardStandIn(abc.ABC):
    """Replacement of the model's `forward` until `remove` is called."""

    def __init__(self, model: nn.Module) -> None:
        functools.update_wrapper(self, model.forward)
        self._model = model
        self._instances_own = "forward" in vars(model)
        self._before: Any = model.forward if self._instances_own else None
        model.forward = self

    def remove(self) -> None:
        if vars(self._model).get("forward") is self:
            if self._instances_own:
                self._model.forward = self._before
            else:
                del self._model.forward

    def own(self, *args: Any, **kwargs: Any) -> Any:
        if self._instances_own:
            return self._before(*args, **kwargs)
        return type(self._model).forward(self._model, *args, **kwargs)

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._instances_own:
            return copy.deepcopy(self._before, memo)
        return types.MethodType(type(self._model).forward, memo.get(id(self._model), self._model))

    def __reduce__(self) -> Any:
        if self._instances_own:
            return functools.partial, (self._before,)
        # during unpickling, this lookup finds the class attribute, because the instance has no attributes yet
        return getattr, (self._model, "forward")


class Recording(ForwardStandIn):
    """Replacement of the model's `forward` while the model is observed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.book = CallBook()
        self.logs: list[CallLog] = []
        self.why = ""
        """Reason why no call can be recorded; empty if calls can be recorded."""
        self.forward_s = 0.0
        """Seconds that a forward takes while nothing is recorded."""
        self.running = False
        """Whether an expected call is running. Reads during the call count as reads by the model."""
        self._call: arguments.ModelCall | None = None
        self._keep: bool | None = None

    def expect(self, call: arguments.ModelCall) -> None:
        """Expect the next call of the model to have this form. Reads during the call count as reads of the model."""
        self._call, self._keep = call, None

    def record(self, *, keep: bool) -> None:
        self._keep = keep

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, self._call = self._call, None
        if call is None or torch.compiler.is_compiling():
            return self.own(*args, **kwargs)
        keep, self._keep = self._keep, None
        self.running = True
        try:
            with pytree.substituted((args, call.in_order(kwargs)), received_batches.behind) as (args, kwargs):
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
        names = {id(tensor): name for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers())}
        recorder = Recorder(
            self.book,
            flat,
            known=lambda tensor: names.get(id(tensor), ""),
            modules=dict(self._model.named_modules()),
            keep=keep,
        )
        with marked_calls.handled_by(recorder.call_marked), recorder:
            result = self.own(*args, **kwargs)
        self.logs.append(recorder.finish())
        return result


def unfit(model: nn.Module) -> str:
    """Return the reason why the model's calls cannot be recorded; empty if they can."""
    for path, part in model.named_modules():
        compiled = type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        if compiled or isinstance(part, torch.jit.ScriptModule):
            return f"{path or 'the model'} is compiled ({type(part).__name__}): its torch calls cannot be observed"
    return surrounded()


def surrounded() -> str:
    """Return why the context of the model prevents recording now; empty if recording is possible."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a torch mode that sees every call is on (torch.set_default_device, an operation profiler)"
    if _compiles():
        return "torch.compile is used in this process, and the torch calls of compiled code cannot be observed"
    return ""


def _compiles() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


class Leading:
    """Timer from the start of forward() to the first module with parameters."""

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """Estimated seconds in all batches so far."""
        self._model = model
        self._clock = clock
        self._began: float | None = None
        self._batches = 0
        self._hooks: list[Any] = []

    def hand_out(self) -> None:
        if self._batches % EVERY == 0 and not compiled(self._model):
            self._hooks.append(self._model.register_forward_pre_hook(self._begin))
            self._hooks += [module.register_forward_pre_hook(self._end) for module in with_parameters(self._model)]
        self._batches += 1

    def on_batch_done(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._began = None

    def _begin(self, module: nn.Module, args: Any) -> None:
        if module.training and not torch.compiler.is_compiling():
            self._began = self._clock()

    def _end(self, module: nn.Module, args: Any) -> None:
        if self._began is not None:
            self.seconds += EVERY * (self._clock() - self._began)
            self._began = None


def with_parameters(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the submodules of a model that have parameters. Skip compiled modules, because a hook would recompile
    them."""
    if not compiled(model):
        for child in model.children():
            if any(True for _ in child.parameters(recurse=False)) and not compiled(child):
                yield child
            else:
                yield from with_parameters(child)


def compiled(module: nn.Module) -> bool:
    whole = type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
    return whole or isinstance(module, torch.jit.ScriptModule)
