"""Records the torch calls of a running forward(), to find the stateless calls that data workers can make.

In: a call of the model by the training loop. Out: a `CallLog`. The recorder keeps a call if each argument is an input,
the result of a recorded call, or a constant. The call must also draw no random numbers and write only to fresh memory.
All other calls stay in the trainer, and the values that they read "escape".
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from springtide.dataworker.split.program.value_keys import (
    CallPart,
    ContentKey,
    InputKey,
    NestKey,
    OwnerKey,
    PartKey,
    Spec,
    Term,
    TorchCall,
    UnknownKey,
    Writer,
    results_of,
)
from springtide.dataworker.split.recorder import bit_compare, marked_calls, torch_functions
from springtide.dataworker.split.recorder.pytree import TreeShape
from springtide.dataworker.split.recorder.torch_functions import OperationWatch, memory, tensors

# reference count of a tensor that only the recorder holds: one reference each from the list, a variable, and the
# argument of getrefcount
UNHELD = 3
CROSSING = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
"""Types of results, besides tensors, that a message can carry."""


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """A call that stays in the trainer, with the reason."""

    line: str
    text: str
    operation: str
    why: str
    reads_input: bool = False
    """True if the call reads a model input directly."""


@dataclass(slots=True)
class CallLog:
    """The recording of a single forward."""

    leaves: tuple[Any, ...]
    """The model's inputs; copies if the recorder keeps values."""
    size: int
    """Batch size: the first dimension of the first tensor."""
    calls: dict[int, TorchCall] = field(default_factory=dict)
    escaped: set[Term] = field(default_factory=set)
    """Inputs and results that the trainer needs: an unrecorded call has read them, or they outlive forward()."""
    stays: list[TrainerCall] = field(default_factory=list)
    seconds: float = 0.0


class CallBook:
    """Numbers of the calls of several forwards, and the constants that these calls read."""

    def __init__(self) -> None:
        self.constants: dict[ContentKey, torch.Tensor] = {}
        self.names: dict[ContentKey, str] = {}
        """Buffer names of constants that belong to the model."""
        self.functions: dict[str, Callable[..., Any]] = {}
        """Marked functions, by name."""
        self.modules: Mapping[str, nn.Module] = {}
        """Modules of the model, by path."""
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def constant(self, value: torch.Tensor) -> ContentKey:
        found = ContentKey(value.dtype, tuple(value.shape), value.stride(), bit_compare.digest(value))
        if found not in self.constants:
            self.constants[found] = value.detach().clone()
        return found


def batch_size(given: Sequence[Any]) -> tuple[int, int]:
    """Return the index of the input that determines the batch size, and the batch size. Return (-1, 0) if no input
    determines it."""
    with torch._C.DisableTorchFunctionSubclass():  # a placeholder already knows its shape
        for number, leaf in enumerate(given):
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                return number, leaf.shape[0]
    return -1, 0


class Recorder(TorchFunctionMode):
    """Recorder of a single forward; call `finish` at its end."""

    def __init__(
        self,
        book: CallBook,
        given: Sequence[Any],
        *,
        known: Callable[[torch.Tensor], str] = lambda tensor: "",
        modules: Mapping[str, nn.Module] | None = None,
        keep: bool = False,
    ) -> None:
        """Prepare the recording.

        known: returns a tensor's name in the model, or "" if the tensor is not the model's.
        modules: modules of the model, by path.
        keep: also keep copies of values.
        """
        super().__init__()
        kept = tuple([leaf.detach().clone() if keep and isinstance(leaf, torch.Tensor) else leaf for leaf in given])
        self.log = CallLog(kept, batch_size(given)[1])
        self._book, self._known, self._keep = book, known, keep
        self._named: dict[int, tuple[Term, torch.Tensor, int]] = {}
        self._others: dict[int, Spec] = {
            id(leaf): InputKey(number)
            for number, leaf in enumerate(given)
            if not isinstance(leaf, (torch.Tensor, *CROSSING))
        }
        self._inside = False
        """True while a marked function runs. The recorder ignores its inner calls."""
        self._times: Counter[Any] = Counter()
        self._fresh: set[int] = set()
        """Memory that recorded calls allocated, and that only results of these calls share."""
        book.modules = modules or book.modules
        self._modules = {id(module): path for path, module in book.modules.items()}
        self._began = time.perf_counter()
        for number, leaf in enumerate(given):
            if is_plain(leaf) and id(leaf) not in self._named:
                self._name(leaf, InputKey(number))

    def finish(self) -> CallLog:
        """End the recording. A value that user code still holds counts as read by the trainer."""
        self.log.seconds = time.perf_counter() - self._began
        held = [(term, tensor) for term, tensor, _ in self._named.values() if isinstance(term, PartKey)]
        self._named.clear()
        while held:
            term, tensor = held.pop()
            if sys.getrefcount(tensor) >= UNHELD:
                self.log.escaped.add(term)
            del tensor
        return self.log

    def at_lookup(self, table: str, inputs: Sequence[Any]) -> None:
        """Note a lookup in a served table. The recorder ignores the torch calls inside the lookup."""
        line, text = torch_functions.users_line()
        self.log.stays.append(
            TrainerCall(
                line, text, "table lookup", f"table {table} is on servers" if table else "its table is on servers"
            )
        )
        self._escape(inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        if torch_functions.is_served_table():
            self._escape((args, kwargs))
            return func(*args, **kwargs)
        name = torch_functions.name_of(func)
        if name in torch_functions.DESCRIBING and args and isinstance(self._term(args[0]), InputKey):
            return func(*args, **kwargs)
        why, template = self._template(name, args, kwargs)
        if template is None:
            return self._pass(func, name, args, kwargs, why)
        writes = torch_functions.writes(func, args, kwargs)
        if writes and not self._may_write(args, kwargs):
            return self._pass(func, name, args, kwargs, "it writes to memory that other values share")
        watch = OperationWatch()
        with watch:
            result = func(*args, **kwargs)
        why = watch.against or self._wrote(watch, writes, args, kwargs) or _strange(result)
        if why:
            self._leave(name, args, kwargs, why, watch.writes)
        else:
            self._record(name, template, (args, kwargs), result, writes, watch.rounds)
        return result

    def call_marked(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of a `@springtide.stateless` function as a single call."""
        if self._inside:
            return function(*args, **kwargs)
        name = marked_calls.name_of(function)
        why, template = self._template(name, args, kwargs)
        self._inside = True
        try:
            owners = {
                self._modules.get(id(arg), ""): arg for arg in (*args, *kwargs.values()) if isinstance(arg, nn.Module)
            }
            watched = marked_calls.MarkedCall(function, owners)
            result = function(*args, **kwargs)
            given = {memory(tensor) for tensor in tensors((args, kwargs))}
            why = why or watched.why or _strange(result)
            if given & {memory(tensor) for tensor in tensors(result)}:
                why = why or "it returns one of its arguments"
        finally:
            self._inside = False
        if why or template is None:
            self._leave(name, args, kwargs, why, set())
        else:
            self._book.functions[name] = function
            self._record(name, template, ((), {}), result, writes=False, rounds=True)
        return result

    # ---- templates of calls ----

    def _template(self, name: str, args: Any, kwargs: Any) -> "tuple[str, _CallTemplate | None]":
        if not name or name in torch_functions.UNMOVED or name in torch_functions.EXPOSING:
            return "it is not a plain torch function", None
        if why := surroundings():
            return why, None
        writer = Writer(self._spec, self._other)
        try:
            specs = tuple([writer.write(arg) for arg in args])
            named: Any = writer.write(kwargs) if kwargs else None
        except UnknownKey:
            return self._stranger(args, kwargs), None
        return "", _CallTemplate(specs, named, tuple(writer.numbers))

    def _term(self, value: Any) -> Term | None:
        known = self._named.get(id(value))
        if known is None:
            return None
        term, tensor, version = known
        return term if tensor._version == version and not tensor.requires_grad else None

    def _spec(self, value: torch.Tensor) -> Spec | None:
        term = self._term(value)
        if term is not None or not bit_compare.is_comparable(value):
            return term
        content = self._book.constant(value)
        if name := self._known(value):
            self._book.names.setdefault(content, name)
        return content

    def _other(self, value: Any) -> Spec | None:
        if isinstance(value, nn.Module) and id(value) in self._modules:
            return OwnerKey(self._modules[id(value)])
        return self._others.get(id(value))

    def _stranger(self, args: Any, kwargs: Any) -> str:
        for tensor in tensors((args, kwargs)):
            name = self._known(tensor)
            if tensor.requires_grad:
                return f"it reads parameter {name}" if name else "a gradient flows through it"
            if self._term(tensor) is None and not bit_compare.is_comparable(tensor):
                what = f"buffer {name}" if name else f"a tensor of {tensor.numel() * tensor.element_size()} bytes"
                return f"it reads {what}, which is too large (or not on the CPU) to compare for every batch"
        return "it has an argument that is neither a tensor nor a plain value"

    def _may_write(self, args: Any, kwargs: Any) -> bool:
        """Return True if a write would only change memory of a single recorded result."""
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or kwargs.get("out") is not None:
            return False
        return isinstance(self._term(target), PartKey) and memory(target) in self._fresh

    def _wrote(self, watch: OperationWatch, writes: bool, args: Any, kwargs: Any) -> str:
        given = {memory(tensor) for tensor in tensors((args, kwargs))}
        allowed = {memory(args[0])} if writes else set[int]()
        return "it writes to its arguments" if watch.writes & (given - allowed) else ""

    # ---- recording of results ----

    def _record(
        self, name: str, template: "_CallTemplate", given: Any, result: Any, writes: bool, rounds: bool
    ) -> None:
        key = name, template.args, template.kwargs
        number = self._book.number((key, self._times[key]))
        self._times[key] += 1
        values, shape = ([given[0][0]], TreeShape()) if writes else results_of(result)
        line, text = torch_functions.users_line()
        same_as = None if writes or len(values) != 1 else self._term(values[0])
        before = {memory(tensor) for tensor in tensors(given)}
        view = not writes and any(isinstance(value, torch.Tensor) and memory(value) in before for value in values)
        if same_as is None:
            for at, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    self._name(value, PartKey(number, at))
                    (self._fresh.discard if view else self._fresh.add)(memory(value))
        self.log.calls[number] = TorchCall(
            number=number,
            name=name,
            args=template.args,
            kwargs=template.kwargs,
            numbers=template.numbers,
            gives=shape,
            parts=tuple([self._seen(value, view) for value in values]),
            writes=writes,
            returns_none=writes and result is None,
            view=view,
            same_as=same_as,
            rounds=rounds,
            line=line,
            text=text,
        )

    def _seen(self, value: Any, view: bool) -> CallPart:
        if not isinstance(value, torch.Tensor):
            return CallPart(type(value), value=value)
        size, copy = value.numel(), value.detach().clone() if self._keep and not view else None
        device = str(value.device)
        return CallPart(value.dtype, size * value.element_size(), size, device, value.is_contiguous(), copy)

    def _name(self, value: torch.Tensor, term: Term) -> None:
        self._named[id(value)] = term, value, value._version

    def _pass(self, func: Any, name: str, args: Any, kwargs: Any, why: str) -> Any:
        written = torch_functions.writes(func, args, kwargs) or name in torch_functions.EXPOSING
        touched = {memory(tensor) for tensor in tensors((args[:1], kwargs.get("out")))} if written else set[int]()
        self._leave(name or getattr(func, "__name__", str(func)), args, kwargs, why, touched)
        return func(*args, **kwargs)

    def _leave(self, name: str, args: Any, kwargs: Any, why: str, written: set[int]) -> None:
        line, text = torch_functions.users_line()
        self._escape((args, kwargs))
        if name not in torch_functions.DESCRIBING:
            reads = any(isinstance(self._term(tensor), InputKey) for tensor in tensors((args, kwargs)))
            self.log.stays.append(TrainerCall(line, text, torch_functions.operation(name), why, reads))
        if written:
            gone = [at for at, (_, tensor, _) in self._named.items() if memory(tensor) in written]
            for at in gone:
                del self._named[at]

    def _escape(self, given: Any) -> None:
        for tensor in tensors(given):
            term = self._term(tensor)
            if term is not None:
                self.log.escaped.add(term)


@dataclass(frozen=True, slots=True)
class _CallTemplate:
    args: tuple[Spec, ...]
    kwargs: NestKey | None
    numbers: tuple[int, ...]


def surroundings() -> str:
    """Describe the active torch context that changes the meaning of calls, such as autocast; empty if there is none."""
    if not torch._C._is_fwd_grad_enabled():
        return "it runs in a torch.autograd.Function"
    if torch._C._is_any_autocast_enabled():
        return "autocast is on"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active"
    return "inference mode is on" if torch.is_inference_mode_enabled() else ""


def is_plain(value: Any) -> bool:
    """Return True if the recorder can record calls with this input."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_inference() or value.is_conj() or value.is_neg() or value.is_quantized)
    )


def _strange(result: Any) -> str:
    """Return the reason why a result cannot be recognised later; empty if it can be recognised."""
    for value in results_of(result)[0]:
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.layout is not torch.strided or value.requires_grad:
                return "its result is not a plain tensor"
        elif type(value) not in CROSSING:
            return f"its result is a {type(value).__name__}, which cannot be sent"
    return ""
