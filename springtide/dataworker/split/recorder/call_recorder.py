"""Records the torch calls of a forward() that is running anyway, so that those without state can be made elsewhere.

In: the model's inputs, and one of the loop's own calls of the model: nothing is run a second time. A call is recorded
where each of its arguments is an input, the result of a recorded call or a constant, and where it was seen to draw no
random numbers and to write to nothing but fresh memory. Everything else escapes: it is the trainer's. Out: a `CallLog`
for each forward. Next: dataworker/split/search/split.py keeps what all logs have in common.
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
    ContentKey,
    InputKey,
    NestKey,
    OwnerKey,
    PartKey,
    Spec,
    Term,
    UnknownKey,
    Writer,
    terms_in,
)
from springtide.dataworker.split.recorder import bit_compare, marked_calls, pytree, source_lines, torch_functions
from springtide.dataworker.split.recorder.call_watch import OperationWatch, memory, tensors
from springtide.dataworker.split.recorder.pytree import TreeShape

UNHELD = 3  # references to a tensor that only its recorder has: the list's, a variable, the argument of getrefcount
CROSSING = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
"""Results that are no tensors and may cross."""


@dataclass(frozen=True, slots=True)
class PartSeen:
    """One value that a call gave."""

    value: Any
    """Of a tensor a copy, where values are kept, else None; anything else as it is."""
    kind: Any
    """Of a tensor its dtype, else its type."""
    bytes: int = 8
    elements: int = 0
    device: str = "cpu"
    contiguous: bool = True

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.kind, torch.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call."""

    number: int
    name: str
    args: tuple[Spec, ...]
    kwargs: NestKey | None
    numbers: tuple[int, ...]
    gives: TreeShape
    parts: tuple[PartSeen, ...]
    writes: bool = False
    """It writes to its first argument, which is its result from then on."""
    returns_none: bool = False
    view: bool = False
    """What it gives looks at memory of an argument."""
    same_as: Term | None = None
    """It gave back this very argument."""
    rounds: bool = False
    line: str = ""
    text: str = ""

    @property
    def terms(self) -> list[Term]:
        """Inputs and results that it reads."""
        return [*terms_in(self.args), *terms_in(self.kwargs or ())]


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """A call that is the trainer's, and why."""

    line: str
    text: str
    operation: str
    why: str
    reads_input: bool = False
    """Whether it reads an input of the model as it is."""


@dataclass(slots=True)
class CallLog:
    """One forward."""

    leaves: tuple[Any, ...]
    """Its inputs; copies, where values are kept."""
    size: int
    """Samples: the first size of the first tensor."""
    calls: dict[int, RecordedCall] = field(default_factory=dict)
    escaped: set[Term] = field(default_factory=set)
    """Inputs and results that something else than a recorded call has read, or that outlive forward()."""
    stays: list[TrainerCall] = field(default_factory=list)
    seconds: float = 0.0


class CallBook:
    """Calls by what they are, over several forwards; and the constants that they read."""

    def __init__(self) -> None:
        self.constants: dict[ContentKey, torch.Tensor] = {}
        self.names: dict[ContentKey, str] = {}
        """What a constant is called in the model, if it is one of its buffers."""
        self.functions: dict[str, Callable[..., Any]] = {}
        """Marked functions, by their names."""
        self.modules: Mapping[str, nn.Module] = {}
        """Of the model, by path."""
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any) -> int:
        """Of a call; a new one, if it was not heard before."""
        return self._numbers.setdefault(key, len(self._numbers))

    def constant(self, value: torch.Tensor) -> ContentKey:
        """A constant by its bits."""
        found = ContentKey(value.dtype, tuple(value.shape), value.stride(), bit_compare.digest(value))
        if found not in self.constants:
            self.constants[found] = value.detach().clone()
        return found


def batch_size(given: Sequence[Any]) -> tuple[int, int]:
    """The input that tells the size of a batch, and that size; (-1, 0): none does."""
    for number, leaf in enumerate(given):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return number, leaf.shape[0]
    return -1, 0


class Recorder(TorchFunctionMode):
    """One forward; `finish` when it is over."""

    def __init__(
        self,
        book: CallBook,
        given: Sequence[Any],
        *,
        known: Callable[[torch.Tensor], str] = lambda tensor: "",
        modules: Mapping[str, nn.Module] | None = None,
        keep: bool = False,
    ) -> None:
        """`known`: what a tensor is called in the model, "" if it is none of its own. `modules`: those of the model, by
        path. `keep`: copies of values too."""
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
        """Whether a marked function is running: its calls are its own."""
        self._times: Counter[Any] = Counter()
        self._fresh: set[int] = set()
        """Memory that recorded calls have made, and that nothing looks at but their own results."""
        book.modules = modules or book.modules
        self._modules = {id(one): path for path, one in book.modules.items()}
        self._began = time.perf_counter()
        for number, leaf in enumerate(given):
            if is_plain(leaf) and id(leaf) not in self._named:
                self._name(leaf, InputKey(number))

    def finish(self) -> CallLog:
        """Forward is over: what somebody still holds was read by somebody."""
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
        """A served table is about to look up ids: what it does inside is its own."""
        line, text = source_lines.users_line()
        self.log.stays.append(TrainerCall(line, text, "table lookup", f"table {table}" if table else "a table"))
        self._escape(inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Everything is done as it would be."""
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        if source_lines.is_served_table():
            self._escape((args, kwargs))
            return func(*args, **kwargs)
        name = torch_functions.name_of(func)
        if torch_functions.describes(name) and args and isinstance(self._term(args[0]), InputKey):
            return func(*args, **kwargs)
        why, told = self._told(name, args, kwargs)
        if told is None:
            return self._pass(func, name, args, kwargs, why)
        writes = torch_functions.writes(func, args, kwargs)
        if writes and not self._may_write(args, kwargs):
            return self._pass(func, name, args, kwargs, "it writes to memory that others look at")
        watch = OperationWatch()
        with watch:
            result = func(*args, **kwargs)
        why = watch.against or self._wrote(watch, writes, args, kwargs) or _strange(result)
        if why:
            self._leave(name, args, kwargs, why, watch.writes)
        else:
            self._hear(name, told, (args, kwargs), result, writes, watch.rounds)
        return result

    def call_marked(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function that is marked `@springtide.stateless` is called: one call, whatever it does inside."""
        if self._inside:
            return function(*args, **kwargs)
        name = marked_calls.name_of(function)
        why, told = self._told(name, args, kwargs)
        self._inside = True
        try:
            owners = {
                self._modules.get(id(one), ""): one for one in (*args, *kwargs.values()) if isinstance(one, nn.Module)
            }
            watched = marked_calls.MarkedCall(function, owners)
            result = function(*args, **kwargs)
            given = {memory(one) for one in tensors((args, kwargs))}
            why = why or watched.why or _strange(result)
            if given & {memory(one) for one in tensors(result)}:
                why = why or "it gives back what it is given"
        finally:
            self._inside = False
        if why or told is None:
            self._leave(name, args, kwargs, why, set())
        else:
            self._book.functions[name] = function
            self._hear(name, told, ((), {}), result, writes=False, rounds=True)
        return result

    # ---- what a call is ----

    def _told(self, name: str, args: Any, kwargs: Any) -> "tuple[str, _CallTell | None]":
        """A call written down; or why it cannot be."""
        if not name or name in torch_functions.UNMOVED or torch_functions.exposes(name):
            return "it is no plain function of torch's", None
        if why := surroundings():
            return why, None
        writer = Writer(self._spec, self._other)
        try:
            specs = tuple([writer.write(one) for one in args])
            named: Any = writer.write(kwargs) if kwargs else None
        except UnknownKey:
            return self._stranger(args, kwargs), None
        return "", _CallTell(specs, named, tuple(writer.numbers))

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
        """Why arguments cannot be written down."""
        for one in tensors((args, kwargs)):
            name = self._known(one)
            if one.requires_grad:
                return f"parameter {name}" if name else "a gradient, which flows through it"
            if self._term(one) is None and not bit_compare.is_comparable(one):
                what = f"buffer {name}" if name else f"a tensor of {one.numel() * one.element_size()} bytes"
                return f"{what}, too large (or not on the CPU) to be compared with every batch"
        return "an argument that is neither a tensor nor a plain value"

    def _may_write(self, args: Any, kwargs: Any) -> bool:
        """Whether a write would go to memory that only one recorded result looks at."""
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or kwargs.get("out") is not None:
            return False
        return isinstance(self._term(target), PartKey) and memory(target) in self._fresh

    def _wrote(self, watch: OperationWatch, writes: bool, args: Any, kwargs: Any) -> str:
        given = {memory(one) for one in tensors((args, kwargs))}
        allowed = {memory(args[0])} if writes else set[int]()
        return "it writes to its arguments" if watch.writes & (given - allowed) else ""

    # ---- what becomes of it ----

    def _hear(self, name: str, told: "_CallTell", given: Any, result: Any, writes: bool, rounds: bool) -> None:
        key = name, told.args, told.kwargs
        number = self._book.number((key, self._times[key]))
        self._times[key] += 1
        values, shape = ([given[0][0]], TreeShape()) if writes else _flat(result)
        line, text = source_lines.users_line()
        same_as = None if writes or len(values) != 1 else self._same(values[0])
        before = {memory(one) for one in tensors(given)}
        view = not writes and any(isinstance(one, torch.Tensor) and memory(one) in before for one in values)
        if same_as is None:
            for at, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    self._name(value, PartKey(number, at))
                    (self._fresh.discard if view else self._fresh.add)(memory(value))
        self.log.calls[number] = RecordedCall(
            number=number,
            name=name,
            args=told.args,
            kwargs=told.kwargs,
            numbers=told.numbers,
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

    def _same(self, value: Any) -> Term | None:
        return self._term(value) if isinstance(value, torch.Tensor) else None

    def _seen(self, value: Any, view: bool) -> PartSeen:
        if not isinstance(value, torch.Tensor):
            return PartSeen(value, type(value))
        copy = value.detach().clone() if self._keep and not view else None
        return PartSeen(
            copy,
            value.dtype,
            value.numel() * value.element_size(),
            value.numel(),
            str(value.device),
            value.is_contiguous(),
        )

    def _name(self, value: torch.Tensor, term: Term) -> None:
        self._named[id(value)] = term, value, value._version

    def _pass(self, func: Any, name: str, args: Any, kwargs: Any, why: str) -> Any:
        """A call that is not recorded."""
        written = torch_functions.writes(func, args, kwargs) or torch_functions.exposes(name)
        touched = {memory(one) for one in tensors((args[:1], kwargs.get("out")))} if written else set[int]()
        self._leave(name or getattr(func, "__name__", str(func)), args, kwargs, why, touched)
        return func(*args, **kwargs)

    def _leave(self, name: str, args: Any, kwargs: Any, why: str, written: set[int]) -> None:
        line, text = source_lines.users_line()
        self._escape((args, kwargs))
        if not torch_functions.describes(name):
            reads = any(isinstance(self._term(one), InputKey) for one in tensors((args, kwargs)))
            self.log.stays.append(TrainerCall(line, text, torch_functions.operation(name), why, reads))
        if written:
            gone = [at for at, (_, one, _) in self._named.items() if memory(one) in written]
            for at in gone:
                del self._named[at]

    def _escape(self, given: Any) -> None:
        for one in tensors(given):
            term = self._term(one)
            if term is not None:
                self.log.escaped.add(term)


@dataclass(frozen=True, slots=True)
class _CallTell:
    args: tuple[Spec, ...]
    kwargs: NestKey | None
    numbers: tuple[int, ...]


def surroundings() -> str:
    """What makes calls mean something else than by themselves; "": nothing."""
    if not torch._C._is_fwd_grad_enabled():
        return "a backward of its own (torch.autograd.Function)"
    if torch._C._is_any_autocast_enabled():
        return "autocast"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode, which looks at every operation"
    return "inference mode" if torch.is_inference_mode_enabled() else ""


def is_plain(value: Any) -> bool:
    """Whether an input is a tensor whose calls can be recorded."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_inference() or value.is_conj() or value.is_neg() or value.is_quantized)
    )


def _flat(result: Any) -> tuple[list[Any], TreeShape]:
    return ([result], TreeShape()) if isinstance(result, torch.Size) else pytree.flatten(result)


def _strange(result: Any) -> str:
    """Why a result cannot be known again; "": it can."""
    for one in _flat(result)[0]:
        if isinstance(one, torch.Tensor):
            if type(one) is not torch.Tensor or one.layout is not torch.strided or one.requires_grad:
                return "what it gives is no plain tensor"
        elif type(one) not in CROSSING:
            return f"what it gives is a {type(one).__name__}, which cannot be sent"
    return ""
