"""Detects changes of the state that user code can read: attributes, globals, closures, class attributes,
environment.

In: a data set and its functions, or a marked function. `ReachableState` walks all reachable objects once. Out:
`changed()` names the state that changed, for every batch. `changed()` compares small containers and arrays by content,
dicts of any size by version, and large lists and arrays one part at a time. Most state consists of references. Native
code compares the references first (cpp/bindings/references.cpp); a check in Python runs only if a reference has
changed.
"""

import datetime
import decimal
import dis
import enum
import fractions
import functools
import operator
import os
import pathlib
import random
import re
import sys
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide import config
from springtide._native import WatchedReferences
from springtide.dataworker.split.recorder import bit_compare, torch_functions

try:
    from torch._C._dynamo.guards import dict_version
except ImportError:  # without this torch function, large dicts are compared like large lists

    def dict_version(d: dict[Any, Any]) -> int:
        """Return a number that changes with the dict; this fallback returns the length of the dict."""
        return len(d)


ATOMS = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    type(...),
    range,
    slice,
    enum.Enum,
    re.Pattern,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    uuid.UUID,
    np.generic,
    np.dtype,
    torch.dtype,
    torch.device,
    torch.Size,
    types.CodeType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    property,
)
"""Types whose objects never change."""
UNREAD = torch_functions.name_set(
    """
    __dict__ __weakref__ __doc__ __module__ __annotations__ __dataclass_fields__ __qualname__ __dataclass_params__
    __match_args__ __parameters__ __orig_bases__ __abstractmethods__ _abc_impl __static_attributes__ __firstlineno__
    """
)
"""Class attributes that need no check, because programs do not read them."""
FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, staticmethod, classmethod)
# number of checks that run for every batch, starting with the nearest objects; they take some tens of microseconds
ALWAYS = 64
IN_TURN = 16  # number of further checks that run with each batch; the checks take turns
FEW = 16  # the walk enters a container with at most this many items as if the items were attributes
SMALL = 256  # most items of a container that is compared completely for every batch, which takes some microseconds
SMALL_BYTES = 1 << 14  # largest array, in bytes, that is compared completely for every batch, which takes a microsecond
PART_BYTES = 1 << 16  # bytes of a larger array to compare for each batch, which takes some microseconds
MOST_COPIED = 1 << 26  # most bytes of all copies together; arrays beyond this limit are compared by address only
MOST_COPIED_THERE = 1 << 20  # the same limit on a data worker, whose arrays come from a shared file
# most objects that are walked; changes in further objects are detected only when some batches are read again and
# compared
MOST_OBJECTS = 4096


MISSING = object()
"""Placeholder for the value of a name that does not exist."""

Check = Callable[[bool], str]
"""Function that returns the name of the changed state; empty if nothing changed.

The argument says whether a name that was None or missing may have got a value since.
"""


def _value(holder: Any, name: str) -> Any:
    """Return what a dict, class or cell holds under a name, or an attribute of another object."""
    if isinstance(holder, dict):
        return holder.get(name, MISSING)
    if isinstance(holder, type):
        return vars(holder).get(name, MISSING)
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return MISSING
    return getattr(holder, name, MISSING)


def _names_check(prefix: str, holder: Any, were: dict[str, Any], *, but: Set[str] | None = None) -> Check:
    """Check names in a namespace: attributes of an object or class, globals, a closure's cell.

    were: values by name. but: entries of a dict that do not count; None if no new entries of the dict matter.
    """
    length = 0 if but is None else len(holder.keys() - but)

    def changed(lenient: bool) -> str:
        for name, was in were.items():
            now = _value(holder, name)
            if now is not was:
                if lenient and (was is None or was is MISSING):
                    were[name] = now
                elif not _equal_atoms(was, now):
                    return f"{prefix}{name}"
        return "" if lenient or but is None or len(holder.keys() - but) == length else prefix.removesuffix(".")

    return changed


def _items_check(name: str, held: Any, were: list[Any]) -> Check:
    """Check a list, deque or set by the identity of its items. A set of more than `SMALL` items is compared by its
    length only.
    """

    def same() -> bool:
        if len(held) != len(were):
            return False
        if isinstance(held, set):
            return len(held) > SMALL or held == set(were)
        return all(map(operator.is_, held, were)) or all(map(_same, were, held))

    return lambda lenient: "" if same() else name


def _dict_check(name: str, held: dict[Any, Any]) -> Check:
    """Check a dict of any size by version and keys."""
    version, length = dict_version(held), len(held)
    were = dict(held) if length <= SMALL else None

    def same() -> bool:
        nonlocal version
        now = dict_version(held)
        if now == version and len(held) == length:
            return True
        if were is None or len(held) != length:
            return False
        version = now
        return all(_same(was, held.get(key, MISSING)) for key, was in were.items())

    return lambda lenient: "" if same() else name


def _array_check(name: str, array: Any, *, copied: bool) -> Check:
    """Check a tensor or array by address, version and bits; a large array is compared a part at a time."""
    kind, at = _kind_of(array), 0
    now = _bytes_of(array) if copied else None
    copy = now.copy() if now is not None else None
    here, there = (0 if bits is None else bits.__array_interface__["data"][0] for bits in (now, copy))

    def same() -> bool:
        nonlocal at
        if _kind_of(array) != kind:
            return False
        if now is None or copy is None:
            return True
        begin, size = at, now.nbytes - at
        if now.nbytes > SMALL_BYTES:
            size = min(size, PART_BYTES)
            at = begin + size if begin + size < now.nbytes else 0
        return bit_compare.same_bytes(there + begin, here + begin, size)

    return lambda lenient: "" if same() else name


def _generator_check(name: str, state: Callable[[], Any]) -> Check:
    where = state()
    return lambda lenient: "" if state() == where else name


TORCHS_OWN = frozenset(vars(nn.Module())) | {"forward", "springtide_binding"}
"""Attributes of modules that belong to torch or to this package."""


class ReachableState:
    """All state that some objects can read, as it was at construction."""

    def __init__(self, roots: Mapping[str, Any], *, parameters: bool = True, most_copied: int = MOST_COPIED) -> None:
        """Walk the objects.

        roots: objects by the name that messages use.
        parameters: also watch parameters of modules.
        most_copied: bytes of arrays whose content is compared; further arrays are compared by address only.
        """
        self.opaque: list[str] = []
        """Objects that can only be compared by identity: objects of other libraries, open files."""
        self._checks: list[Check] = []
        self._references = WatchedReferences(MISSING, SMALL)
        """The references that checks compare, by number of the check."""
        self._seen: dict[int, Any] = {}
        self._copied = 0
        self._parameters, self._most_copied = parameters, most_copied
        self._queue: deque[tuple[str, Any]] = deque(roots.items())
        self._later: deque[tuple[str, Any]] = deque()
        """Items of large containers, walked after all nearer objects."""
        while (left := self._queue or self._later) and len(self._seen) < MOST_OBJECTS:
            self._visit(*left.popleft())
        self.opaque += [f"{left[0][0]} and more"] if left else []
        self._queue.clear()
        self._later.clear()
        self._at = ALWAYS

    def changed(self, *, lenient: bool = False) -> str:
        """Return the name of the first changed state; empty if nothing changed.

        lenient: a value that was None or missing may now exist, because files and indices open at first use.
        """
        begin, self._at = self._at, self._at + IN_TURN if self._at + IN_TURN < len(self._checks) else ALWAYS
        suspects = self._references.suspects
        numbers: list[int] = [*suspects(0, ALWAYS), *suspects(begin, begin + IN_TURN)]
        for number in numbers:
            if name := self._checks[number](lenient):
                return name
        return ""

    def _visit(self, name: str, value: Any) -> None:
        if isinstance(value, ATOMS) or id(value) in self._seen:
            return
        if not self._parameters and isinstance(value, torch.Tensor) and value.requires_grad:
            return
        self._seen[id(value)] = value  # keeps the object alive, because otherwise a new object could get the same id
        if isinstance(value, torch.Tensor | np.ndarray):
            self._array(name, value)
        elif isinstance(value, dict):
            self._check(_dict_check(name, value))
            self._several(name, [(f"[{key!r}]", item) for key, item in value.items()], list(value.values()))
        elif isinstance(value, list | deque | set | bytearray):
            self._items(name, value)
        elif isinstance(value, tuple | frozenset):
            self._several(name, [(f"[{at}]", item) for at, item in enumerate(value)], list(value))
        elif isinstance(value, FUNCTIONS):
            self._function(name, value)
        elif isinstance(value, type):
            self._class(name, value)
        elif isinstance(value, types.ModuleType):
            pass  # functions that use the module add the names that they read from the module, so add nothing here
        elif (state := _generator(value)) is not None:
            self._check(_generator_check(name, state))
        else:
            self._object(name, value)

    def _check(self, check: Check) -> None:
        self._checks.append(check)
        self._references.add_other()

    def _items(self, name: str, held: Any) -> None:
        were = list(held)
        self._checks.append(_items_check(name, held, were))
        if type(held) is list:
            self._references.add_items(held, were)
        else:
            self._references.add_other()
        self._several(name, [(f"[{at}]", item) for at, item in enumerate(were)], were)

    def _several(self, name: str, parts: list[tuple[str, Any]], values: list[Any]) -> None:
        """Queue the items of a container, unless none of them can change."""
        if not all(issubclass(kind, ATOMS) for kind in set(map(type, values))):
            queue = self._queue if len(parts) <= FEW else self._later
            queue += [(f"{name}{part}", item) for part, item in parts[:MOST_OBJECTS]]

    def _array(self, name: str, value: Any) -> None:
        size = int(value.nbytes)
        copied = _has_bytes(value) and self._copied + size <= self._most_copied
        self._copied += size if copied else 0
        self._check(_array_check(name, value, copied=copied))
        if not copied:
            self.opaque.append(name)

    def _object(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._torch_module(name, value)
            return
        held = getattr(value, "__dict__", None)
        slots = [slot for kind in type(value).__mro__ for slot in _slots(kind)]
        if isinstance(held, dict):
            self._watch(f"{name}.", held, held, but=frozenset())
        if slots:
            self._watch(f"{name}.", value, slots)
        if not (isinstance(held, dict) or slots or _is_users(type(value))):
            self.opaque.append(name)
            return
        self._queue.append((type(value).__name__, type(value)))

    def _torch_module(self, name: str, module: nn.Module) -> None:
        """Watch plain attributes, buffers and submodules; skip torch's internals, such as hooks."""
        held = vars(module)
        names = [attribute for attribute in held if attribute not in TORCHS_OWN]
        self._watch(f"{name}.", held, names, but=TORCHS_OWN)
        self._watch(f"{name}.", held, ["training"])
        inner = ["_buffers", "_modules", *(["_parameters"] if self._parameters else [])]
        self._queue += [(f"{name}.{attribute}", held[attribute]) for attribute in inner]
        self._queue.append((type(module).__name__, type(module)))

    def _watch(self, prefix: str, holder: Any, names: Iterable[str], *, but: Set[str] | None = None) -> None:
        were = {name: _value(holder, name) for name in names}
        self._checks.append(_names_check(prefix, holder, were, but=but))
        self._references.add_names(holder, were, sized=but is not None)
        self._queue += [(f"{prefix}{name}", value) for name, value in were.items()]

    def _class(self, name: str, kind: type) -> None:
        for base in kind.__mro__:
            if _is_users(base):
                held = vars(base)
                names = [attribute for attribute in held if attribute not in UNREAD]
                self._watch(f"{base.__name__}.", base, names)

    def _function(self, name: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self._queue += [(name, value.__func__), (name.rpartition(".")[0] or name, value.__self__)]
        elif isinstance(value, functools.partial):
            self._queue += [(name, value.func), (name, value.args), (name, value.keywords)]
        elif isinstance(value, staticmethod | classmethod):
            self._queue.append((name, value.__func__))
        else:
            self._plain_function(name, value)

    def _plain_function(self, name: str, value: types.FunctionType) -> None:
        self._watch(f"{name}.", value, ["__code__", "__defaults__", "__kwdefaults__"])
        for cell_name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._watch("", cell, [cell_name])
        if value.__dict__:
            self._queue.append((f"{name}.__dict__", value.__dict__))
        if _is_users(value):
            own = [chain for chain in _globals_in(value.__code__) if chain[0] in value.__globals__]
            names = sorted({chain[0] for chain in own})
            self._watch("", value.__globals__, names)
            for first, *rest in own:
                self._of_module(first, value.__globals__[first], rest)
        for path in _imports_in(value.__code__):
            self._of_module(path[0], sys.modules.get(path[0]), path[1:])

    def _of_module(self, name: str, module: Any, names: Sequence[str]) -> None:
        """Watch the names that a function reads from a module, also through attributes: `settings.model.size`."""
        if not isinstance(module, types.ModuleType) or not names:
            return
        first, *rest = names
        if module is os and first in ("environ", "getenv"):
            self._queue.append(("the environment", config.live_variables()._data))  # type: ignore[attr-defined]
        elif _is_users(module):
            self._watch(f"{name}.", vars(module), [first])
        self._of_module(f"{name}.{first}", vars(module).get(first), rest)


def _same(was: Any, now: Any) -> bool:
    return was is now or _equal_atoms(was, now)


def _equal_atoms(was: Any, now: Any) -> bool:
    return type(was) is type(now) and isinstance(was, ATOMS) and bool(was == now)


def _slots(kind: type) -> list[str]:
    found = vars(kind).get("__slots__", ())
    names = [found] if isinstance(found, str) else list(found)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _globals_in(code: types.CodeType) -> Iterator[list[str]]:
    """Yield the globals that a function reads, each with the attributes that the function reads: ["settings",
    "size"].
    """
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(str(instruction.argval))
        elif instruction.opname not in ("CACHE", "PUSH_NULL", "PRECALL", "RESUME", "NOP"):
            if chain:
                yield chain
            chain = [str(instruction.argval)] if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else []
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals_in(inner)


def _imports_in(code: types.CodeType) -> Iterator[list[str]]:
    """Yield the modules that a function imports, with the names that it takes from them."""
    module = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            module = str(instruction.argval)
        elif (instruction.opname == "IMPORT_FROM" and module) or (
            instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and module
        ):
            yield [module, str(instruction.argval)]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _imports_in(inner)


def _is_users(item: Any) -> bool:
    """Return True if user code defines a class, function or module: neither Python, an installed package nor this
    package."""
    if isinstance(item, types.FunctionType):
        return torch_functions.is_users(item.__code__.co_filename)
    module = item if isinstance(item, types.ModuleType) else sys.modules.get(getattr(item, "__module__", ""))
    if module is None:
        return isinstance(item, type)  # True for a class whose module, such as a script, is not imported here
    if module.__name__ == "__main__":
        return True
    return bool(getattr(module, "__file__", None)) and torch_functions.is_users(str(module.__file__))


def _generator(value: Any) -> Callable[[], Any] | None:
    """Return a function that reads the position of a random number generator; None for an unknown object."""
    if isinstance(value, random.Random):
        return value.getstate
    if isinstance(value, np.random.Generator):
        return lambda: repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return lambda: repr(value.get_state(legacy=False))
    return (lambda: value.get_state().numpy().tobytes()) if isinstance(value, torch.Generator) else None


def _kind_of(array: Any) -> tuple[Any, ...]:
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
    if array.layout is not torch.strided:
        return (array._version,)
    version = 0 if array.is_inference() else array._version
    return version, array.data_ptr(), array.shape, array.stride(), array.dtype, array.requires_grad


def _has_bytes(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return not isinstance(array, np.memmap) and not array.dtype.hasobject and array.flags.c_contiguous
    plain = array.layout is torch.strided and array.device.type == "cpu"
    return plain and array.is_contiguous() and not (array.is_conj() or array.is_neg() or array.is_quantized)


def _bytes_of(array: Any) -> Any:
    """Return the memory of an array as bytes; later writes to the array are visible in them."""
    if isinstance(array, torch.Tensor):
        return array.detach().reshape(-1).view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


class CopyWatch:
    """Detects changes that a data set or function makes to itself on a data worker. The state of a watch is not
    pickled.
    """

    def __init__(self) -> None:
        self._state: ReachableState | None = None
        self._changed = ""

    def __reduce__(self) -> Any:
        return CopyWatch, ()

    def begin(self, **roots: Any) -> None:
        if self._state is None:
            self._state = ReachableState(roots, most_copied=MOST_COPIED_THERE)

    def changed(self) -> str:
        """Check the state after a call. Return the first change since construction; empty if there was none."""
        if self._state is not None and not self._changed:
            self._changed = self._state.changed(lenient=True)
        return self._changed
