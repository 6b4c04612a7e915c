"""Runs the user's own forward() in the trainer, and answers moved torch calls with values from data workers.

Inputs and moved results are lazy tensors, called promises (lazy_values.py), so the replay sees every torch call that
takes a promise. The replay answers a call only if data workers made exactly the same call, which known_calls.py checks.
The trainer runs every other call itself, on real tensors. worker/split/split_forward.py uses this module.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from springtide._native import KnownCalls, TensorConstant
from springtide.dataworker.split.program import known_calls, lazy_values
from springtide.dataworker.split.program.known_calls import NOTHING, KnownEntry, MatchContext
from springtide.dataworker.split.program.lazy_values import Promise, Promises
from springtide.dataworker.split.program.moved_program import PROVEN, decoded, put
from springtide.dataworker.split.program.value_keys import (
    CallPart,
    ContentKey,
    InputKey,
    PartKey,
    Term,
    TorchCall,
    results_of,
)
from springtide.dataworker.split.recorder import bit_compare, call_recorder, marked_calls, pytree, torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode
from springtide.dataworker.split.recorder.torch_functions import memory, tensors
from springtide.embedding.lookup.id_routes import is_absent

SURROUNDINGS = (
    (torch._C._is_fwd_grad_enabled, True),
    (torch._C._is_any_autocast_enabled, False),
    (torch._C._len_torch_dispatch_stack, 0),
    (torch.is_inference_mode_enabled, False),
)
"""Torch functions that return the active modes. Their results come from outside any mode."""
# number of batch sizes for which input-independent values are cached: the usual size, and the sizes of the last batches
# of an epoch
SIZES = 4


class CallReplay:
    """All known calls of a split, in the order of the recording. A `CallReplay` replays one forward at a time."""

    def __init__(
        self,
        known: Sequence[TorchCall],
        constants: Mapping[ContentKey, torch.Tensor],
        inputs: Sequence[tuple[torch.dtype, str] | None],
        crossing: int,
        marked: MarkedCode | None = None,
    ) -> None:
        """Prepare the replay of these known calls.

        inputs: dtype and device of each model input; None for an input that is not a tensor.
        crossing: number of values that data workers send.
        marked: the user's marked functions and the modules that own these functions, as they are in this process.
        """
        slots: dict[Term, int] = {InputKey(number): number for number in range(len(inputs))}
        kinds = list(inputs)
        for call in known:
            if call.same_as is None:
                for at, part in enumerate(call.parts):
                    slots[PartKey(call.number, at)] = len(slots)
                    kinds.append((part.kind, part.device) if part.is_tensor else None)
        self.crossing, self.slots, self.leaves = crossing, len(slots), len(inputs)
        values = {key: TensorConstant(value) for key, value in constants.items()}
        free = {slots[PartKey(call.number, at)] for call in known if call.free for at in range(len(call.parts))}
        marked = marked or MarkedCode()
        context = MatchContext(slots, values, free, len(inputs), marked)
        made = [KnownEntry(call, context) for call in known]
        self.state = marked_calls.state_of(marked.functions, marked.owners) if marked.functions else None
        self.entries = [entry for entry in made if not entry.known.free]
        """Known calls in the order of forward(); marked functions may come at any time."""
        for at, entry in enumerate(self.entries):
            entry.at = at
        self.views = [entry for entry in self.entries if entry.known.view and entry.slots]
        self.free = [entry for entry in made if entry.known.free]
        self.makers = {slot: entry for entry in made if entry.first >= 0 for slot in entry.slots}
        self.by_function: dict[Any, list[KnownEntry]] = {}
        for entry in self.entries:
            self.by_function.setdefault(entry.function, []).append(entry)
        self.read = frozenset(slot for entry in self.entries for slot in entry.reads)
        """Slots that known calls read. forward() gets promises for these slots, and plain values for all other
        slots.
        """
        self.calls = KnownCalls(
            [entry.native(self.read) for entry in self.entries],
            bit_compare.KINDS,
            [*SURROUNDINGS, (torch.get_default_dtype, torch.get_default_dtype())],
            lazy_values.on_real,
        )
        lazy = self.read.union(*[entry.unsent for entry in self.entries])
        kinds = [kind if slot in lazy else None for slot, kind in enumerate(kinds)]
        self.promises = Promises(kinds, self.calls, set(self.by_function))
        _functions_get_tensors()
        self._by_size: OrderedDict[int, dict[int, TensorConstant]] = OrderedDict()

    def run(
        self,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        crossing: Sequence[Any],
        *,
        pristine: Callable[[Any], Any],
        check: bool = False,
    ) -> "tuple[Any, ReplayReport]":
        """Run forward() with values that data workers computed. Return the result of forward(), and the values that
        forward() used.

        pristine: function that returns an input as it was before forward() wrote to the input. check: compute every
            call in this process, and compare the results with the values from data workers.
        """
        given = [*args, *kwargs.values()]
        if nested := not all(map(torch.is_tensor, given)):
            given, _ = pytree.flatten((args, kwargs))
        answers = ForwardReplay(self, given, crossing, pristine, check=check)
        undo: list[pytree.Replacement] = []
        try:
            self.calls.begin(answers, self.promises.all, tuple(crossing), not check)
            listener = marked_calls.listen(answers.call_marked)
            try:
                if nested:
                    args, kwargs = pytree.substitute((args, kwargs), answers.input, undo)
                else:
                    args = tuple(map(answers.input, args))
                    kwargs = {name: answers.input(leaf) for name, leaf in kwargs.items()}
                result = answers.unwrapped(forward(*args, **kwargs))
            finally:
                pytree.restore(undo)
                marked_calls.listen(listener)
            del args, kwargs
            undo.clear()
            answers.end()
            self.promises.settle()
        except BaseException:
            self.promises.drop()
            raise
        finally:
            self.calls.end()
        return result, answers.report

    def free_values(self, size: int) -> dict[int, TensorConstant]:
        """Return the results of calls that depend on no input, for this batch size."""
        found = self._by_size.get(size)
        if found is None:
            found, values = {}, dict[int, Any]()
            with torch.no_grad():
                for entry in self.free:
                    for slot, value in zip(entry.slots, entry.made(values.__getitem__, size), strict=True):
                        values[slot] = value
                        found[slot] = TensorConstant(value)
            self._by_size[size] = found
            if len(self._by_size) > SIZES:
                self._by_size.popitem(last=False)
        return found


@dataclass(slots=True)
class ReplayReport:
    """Report on how a forward() used the values from data workers."""

    sent: int
    """Number of values that data workers sent."""
    used: int = 0
    differs: str = ""
    """The first value that differs from the data worker's value, if the replay ran with `check`."""
    why: str = ""
    """Reason why forward() did not use all values: the call that matched no recorded call, and how it differs."""

    @property
    def complete(self) -> bool:
        return self.used == self.sent


class ForwardReplay:
    """State of a single forward() during its replay."""

    def __init__(
        self,
        to: CallReplay,
        given: Sequence[Any],
        crossing: Sequence[Any],
        pristine: Callable[[Any], Any],
        *,
        check: bool,
    ) -> None:
        self.report = ReplayReport(to.crossing)
        self.values: list[Any] = [NOTHING] * to.slots
        """Current content of each slot: a promise, or a list input."""
        self.size = call_recorder.batch_size(given)[1]
        self.free = to.free_values(self.size)
        self._to, self._crossing, self._pristine, self._check = to, crossing, pristine, check
        self.real: dict[int, tuple[Any, Any]] = {}
        """Real tensor of each slot (inputs, received and computed values), with its version counter at arrival. A list
        input has its original content for a version, and an absent input has None.
        """
        self._other: tuple[KnownEntry, Any] | None = None
        """The first call of a known function that did not match, with its arguments."""
        self._inputs: dict[int, Any] = {}
        """Promises that replace the inputs, by id of the input."""
        for number, leaf in enumerate(given):
            if number in to.read and id(leaf) not in self._inputs:
                self._begin(number, leaf)

    def _begin(self, number: int, leaf: Any) -> None:
        """Register an input that known calls read. If the calls on an input cannot be recorded, the input stays a plain
        value."""
        tensor = leaf.springtide_here if is_absent(leaf) else leaf
        if isinstance(leaf, list | tuple):
            self.values[number], self.real[number] = leaf, (leaf, tuple(leaf))
        elif tensor is None or call_recorder.is_plain(tensor):
            self.real[number] = leaf, None if is_absent(leaf) else leaf._version
            self._inputs[id(leaf)] = self.values[number] = self._to.promises.all[number]

    def input(self, leaf: Any) -> Any:
        return self._inputs.get(id(leaf), leaf)

    def end(self) -> None:
        report, other, self._other = self.report, self._other, None
        report.used += self._to.calls.used
        if report.complete:
            report.why = ""
        elif not report.why:
            report.why = known_calls.difference(self._to.calls, *other) if other is not None else OTHER_CALLS
        self.values.clear()
        self._inputs.clear()

    def unwrapped(self, result: Any) -> Any:
        if type(result) is torch.Tensor:
            return result
        parts, shape = pytree.flatten(result)
        if any(isinstance(part, Promise) for part in parts):
            return shape.rebuild([part.here() if isinstance(part, Promise) else part for part in parts])
        return result

    # ---- calls ----

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer a torch call with a received value or a promise, or run the call. `KnownCalls` has already answered
        the usual calls before this method runs."""
        entry = self._find(func, args, kwargs)
        if entry is not None and self._to.calls.surroundings_fit():
            self._to.calls.mark_done(entry.at)
            answer = self._checked(entry, func, args, kwargs) if self._check else self._answer(entry, args)
            if answer is not NO_ANSWER:
                return answer
        if torch_functions.touches(func, args, kwargs):
            self._before_writing(args, kwargs)
        return lazy_values.on_real(func, args, kwargs)

    def _find(self, func: Any, args: Any, kwargs: Any) -> KnownEntry | None:
        """Find a known call that matches and that forward() has not made yet."""
        calls = self._to.calls
        for entry in self._to.by_function.get(func, ()):
            if not calls.is_done(entry.at):
                if calls.matches(entry.at, args, kwargs):
                    return entry
                self._other = self._other or (entry, args)
        return None

    def call_marked(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Answer a call of a marked function, or run the function."""
        entry = self._find(function, args, kwargs)
        if entry is not None and not (changed := self._to.state.changed() if self._to.state is not None else "it"):
            self._to.calls.mark_done(entry.at)
            if not self._check:
                return self._answer(entry, args)
            with marked_calls.handled_by(None):
                return self._checked(entry, entry.function, args, kwargs)
        if entry is not None:
            self.report.why = f"{torch_functions.operation(entry.known.name)} reads {changed}, which has changed"
        with marked_calls.handled_by(None):
            return lazy_values.on_real(function, args, kwargs)

    def is_unwritten(self, number: int) -> bool:
        """Return True if the input is unchanged and requires no gradient."""
        leaf, version = self.real[number]
        if type(version) is int:
            return bool(leaf._version == version) and not leaf.requires_grad
        return not leaf.changed if version is None else tuple(leaf) == version

    # ---- answers ----

    def _answer(self, entry: KnownEntry, args: Any) -> Any:
        known = entry.known
        if entry.gives_arg >= 0:
            return self.values[entry.gives_arg]
        if known.writes:
            return self._write(entry, args[0])
        parts = []
        for slot, part in zip(entry.slots, known.parts, strict=True):
            if part.crosses < 0:
                found = self.values[slot] = self._to.promises.all[slot]
            else:
                found = self._give(slot, self._crossed(part))
            parts.append(found)
        return parts[0] if known.gives.kind is None else known.gives.rebuild(parts)

    def _crossed(self, part: CallPart) -> Any:
        self.report.used += 1
        value = self._crossing[part.crosses]
        if isinstance(value, torch.Tensor):
            return value if part.device == "cpu" else put(value, part.device)
        return decoded(value, part.kind)

    def _give(self, slot: int, value: Any) -> Any:
        """Store a value in its slot. Return a promise if known calls read the slot, else the value."""
        if isinstance(value, torch.Tensor):
            self.real[slot] = value, value._version
            if slot in self._to.read:
                value = self.values[slot] = self._to.promises.all[slot]
        return value

    def _write(self, entry: KnownEntry, target: Any) -> Any:
        """Answer an in-place call on an intermediate result without views."""
        known, slot = entry.known, target.springtide_slot
        # user code may hold the target, so run the call
        if slot < self._to.leaves or slot in self.real or self._is_shared(slot):
            return NO_ANSWER
        if known.parts[0].crosses >= 0:
            value = self._crossed(known.parts[0])
            self.real[entry.first] = value, value._version
        return self._moved(target, entry)

    def _is_shared(self, slot: int) -> bool:
        """Return True if forward() has made a view of this slot, or the slot is a view."""
        done = self._to.calls.is_done
        return any(done(view.at) and slot in (*view.slots, *view.reads) for view in self._to.views)

    def _moved(self, target: Any, entry: KnownEntry) -> Any:
        """Move the promise of a written tensor to the slot of the new result, and return what the call returns."""
        self.values[target.springtide_slot] = NOTHING
        self._to.promises.moved = True
        target.springtide_slot = entry.first
        self.values[entry.first] = target
        return None if entry.known.returns_none else target

    def _checked(self, entry: KnownEntry, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the call in this process, and compare its result with the data worker's value."""
        known = entry.known
        if entry.gives_arg >= 0:
            return self.values[entry.gives_arg]
        result = lazy_values.on_real(PROVEN.get(known.name, func), args, kwargs)
        if known.writes:
            value, _ = self.real[args[0].springtide_slot]
            self._compare(entry, known.parts[0], value)
            self.real[entry.first] = value, value._version
            return self._moved(args[0], entry)
        given = []
        for slot, part, value in zip(entry.slots, known.parts, results_of(result)[0], strict=True):
            self._compare(entry, part, value)
            given.append(self._give(slot, value))
        return given[0] if known.gives.kind is None else known.gives.rebuild(given)

    def _compare(self, entry: KnownEntry, part: CallPart, value: Any) -> None:
        if part.crosses >= 0:
            crossed = self._crossed(part)
            both = isinstance(value, torch.Tensor) and isinstance(crossed, torch.Tensor)
            equal = bit_compare.same(crossed, value) if both else type(crossed) is type(value) and crossed == value
            if not equal and not self.report.differs:
                what = f"{torch_functions.operation(entry.known.name)} of {entry.known.line or 'forward()'}"
                self.report.differs = f"{what} computes other bits than the data worker sent"

    # ---- promises ----

    def compute(self, slot: int) -> Any:
        """Compute the value of a promise by running its recorded calls in this process."""
        if slot not in self.real:
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), torch.no_grad():
                self._make(slot)
        return self.real[slot][0]

    def _make(self, slot: int) -> None:
        entry = self._to.makers[slot]
        read = self._base if entry.known.view else self._read
        for at, value in zip(entry.slots, entry.made(read, self.size), strict=True):
            if isinstance(value, torch.Tensor):
                self.real.setdefault(at, (value, value._version))

    def _base(self, slot: int) -> Any:
        """Return the base tensor of a view, with all later writes."""
        return self.free[slot].value if slot in self.free else self.compute(slot)

    def _read(self, slot: int) -> Any:
        """Return the value that a slot held before any write."""
        value = self._base(slot)
        _, version = self.real.get(slot, (None, 0))
        if slot in self.free or (self.is_unwritten(slot) if slot < self._to.leaves else value._version == version):
            return value
        if slot < self._to.leaves:
            return self._pristine(self.real[slot][0])
        entry = self._to.makers[slot]
        return dict(zip(entry.slots, entry.made(self._read, self.size), strict=True))[slot]

    # ---- writes ----

    def _before_writing(self, args: Any, kwargs: Any) -> None:
        """Compute all promises that user code holds before a write changes their inputs. Forget the slots that the
        write changes."""
        targets = [
            tensor
            for tensor in (*tensors(args[:1]), *tensors((kwargs or {}).get("out")))
            if isinstance(tensor, Promise)
        ]
        if not targets:
            return
        here = [target.here() for target in targets]
        written = {memory(tensor) for tensor in here if not is_absent(tensor)}
        self._to.promises.compute({at for at, value in enumerate(self.values) if isinstance(value, Promise)})
        self._forget(targets, written)

    def _forget(self, gone: Sequence[Any], written: Set[int]) -> None:
        """Forget slots whose promise is in this list, and slots whose tensor lies in written memory."""
        for slot, value in enumerate(self.values):
            real, _ = self.real.get(value.springtide_slot, (None, 0)) if isinstance(value, Promise) else (None, 0)
            lies = isinstance(real, torch.Tensor) and not is_absent(real) and memory(real) in written
            if lies or any(value is dropped for dropped in gone):
                self.values[slot] = NOTHING


NO_ANSWER = object()
OTHER_CALLS = "forward() made other calls than when it was split"


@functools.cache
def _functions_get_tensors() -> None:
    """Give `torch.autograd.Function.apply` real tensors, in every replay of this process: `__torch_function__` does not
    see this call. Python drops its caches for a class that changes, so the method is replaced only once.
    """
    own = vars(torch.autograd.Function)["apply"].__func__

    @functools.wraps(own)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if KnownCalls.forward_runs():
            args, kwargs = lazy_values.here(args), lazy_values.here(kwargs)
        return own(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
