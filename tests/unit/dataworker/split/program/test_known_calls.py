"""A known call matches exactly its recorded arguments: by type and value, floats by bits."""

import ctypes
import gc
import inspect
import math
import struct
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from springtide._native import KnownCalls
from springtide.dataworker.split.program import known_calls
from springtide.dataworker.split.program.known_calls import MatchContext
from springtide.dataworker.split.program.lazy_values import Promises
from springtide.dataworker.split.program.value_keys import InputKey, PartKey, TimesKey, UnknownKey, Writer, decided
from springtide.dataworker.split.recorder.bit_compare import KINDS
from springtide.dataworker.split.recorder.marked_calls import MarkedCode

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 1, True, ..., "mean", "sum", b"sum", 2j]),
    st.sampled_from([torch.int64, torch.float32, torch.device("cpu"), torch.strided, int, float]),
    st.sampled_from([np.float32(1), np.float64(1), np.int64(1), np.float32(-0.0), np.float32(0.0)]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=6,
)


class Replay:
    """An unwritten or written input."""

    unwritten = True

    def __init__(self, size=1, values=()):
        self.size, self.values, self.real, self.free = size, list(values), {}, {}

    def is_unwritten(self, slot):
        return self.unwritten

    def call(self, func, args, kwargs):
        return "run", args, kwargs or {}


def make_known_calls(args, kwargs, answer=-1, slots=(), inputs=0, surroundings=()):
    context = MatchContext({key: at for at, key in enumerate(slots)}, {}, set(), inputs, MarkedCode())
    named = tuple((name, context.template(spec)) for name, spec in kwargs.items())
    own = tuple(context.template(spec) for spec in args)
    parts = ((answer, -1, True),) if answer >= 0 else ()
    return KnownCalls(
        [(torch.add, own, named, parts, False, False)], KINDS, list(surroundings), lambda *call: ("out", call)
    )


def template(value):
    writer = Writer(lambda tensor: None, lambda other: None)
    spec = writer.write(value)
    return decided(spec, [writer.numbers] * 2, [7, 8])


def bits(value):
    """A key that is equal only for equal types and bits."""
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float, struct.pack("d", value)
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, list | tuple):
        return type(value), tuple(bits(item) for item in value)
    if isinstance(value, dict):
        return dict, tuple((key, bits(item)) for key, item in value.items())
    if isinstance(value, slice):
        return slice, bits(value.start), bits(value.stop), bits(value.step)
    return type(value), value


@given(values, values)
def test_known_call_matches_only_equal_types_and_bits(recorded, called):
    try:
        spec = template(recorded)
    except UnknownKey:
        return
    calls = make_known_calls([spec], {"out": spec})
    calls.begin(Replay(7), [], (), True)
    for one in (recorded, called):
        equal = bits(one) == bits(recorded)
        assert calls.argument_matches(0, 0, one) is equal
        assert calls.matches(0, (one,), {"out": one}) is equal
    for args, kwargs in (((), {"out": recorded}), ((recorded,), None), ((recorded,), {"dim": recorded})):
        assert not calls.matches(0, args, kwargs)
    calls.end()


def test_size_sequence_matches_a_tuple_and_multiples_follow_the_batch():
    calls = make_known_calls([template((2, 3)), TimesKey(3)], {})
    calls.begin(Replay(5), [], (), True)
    assert calls.matches(0, (torch.Size([2, 3]), 15), None) and calls.matches(0, ((2, 3), 15), {})
    for other in (14, 15.0, True, None, 15 + 2**64):
        assert not calls.matches(0, ((2, 3), other), None)
    assert not calls.matches(0, ([2, 3], 15), None) and not calls.matches(0, [(2, 3), 15], None)
    calls.end()


def test_known_call_of_an_unmodified_input_is_answered_once():
    modes = []
    calls = make_known_calls(
        [InputKey(0), PartKey(0, 0)],
        {},
        answer=2,
        slots=(InputKey(0), PartKey(0, 0)),
        inputs=1,
        surroundings=[(lambda: len(modes), 0)],
    )
    first, second, promise, replay = object(), object(), object(), Replay()

    def call(func, *args, kwargs=None):
        return calls.handler(func, (), args, kwargs)

    assert call(torch.add, first, second) == ("out", (torch.add, (first, second), None))
    values = replay.values = [first, second, None]
    calls.begin(replay, [None, None, promise], (), True)
    replay.unwritten = False
    assert call(torch.add, first, second)[0] == "run"
    replay.unwritten = True
    modes.append("autocast")
    assert call(torch.add, first, second)[0] == "run"
    modes.clear()
    for args in ((second, first), (first,), (first, second, 1), (first, math.nan)):
        assert call(torch.add, *args) == ("run", args, {})
    assert call(torch.sub, first, second)[0] == "run"
    assert call(torch.add, first, second, kwargs={"alpha": 2})[0] == "run"
    assert not calls.is_done(0) and values[2] is None
    assert call(torch.add, first, second) is promise and values[2] is promise and calls.is_done(0)
    assert call(torch.add, first, second)[0] == "run", "each known call is answered once"
    calls.end()
    assert calls.running is None and call(torch.add, first, second)[0] == "out"


def test_comparison_errors_reach_the_caller_and_nothing_is_kept():
    class Failing(Replay):
        def is_unwritten(self, slot):
            raise LookupError("gone")

    calls = make_known_calls([InputKey(0)], {}, answer=0, slots=(InputKey(0),), inputs=1)
    value = object()
    failing = Failing(values=[value])
    gone = weakref.ref(failing)
    calls.begin(failing, [None], (), True)
    with pytest.raises(LookupError):
        calls.handler(torch.add, (), (value,), None)
    calls.end()
    del failing
    gc.collect()
    assert gone() is None


class Passing(torch.Tensor):
    """A tensor that returns the function that torch passes on for a call."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (), dtype=torch.int64)

    __torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: func)
    __torch_dispatch__ = classmethod(lambda cls, *call: None)


OWN = {name: value for name in dir(torch.Tensor) if callable(value := inspect.getattr_static(torch.Tensor, name))}
ARGUMENTS = {"to": (torch.float32,), "contiguous": (), "t": (), "long": (), "float": ()}


def promises_of(function, args):
    """Two promises, and the known call of this function that leads from the first to the second."""
    own = ((0, 0, None, ()), *((known_calls.KINDS.index("equal"), 0, value, ()) for value in args))
    calls = KnownCalls([(function, own, (), ((1, -1, True),), False, False)], KINDS, [], lambda *call: "out")
    promises = Promises([(torch.int64, "cpu")] * 2, calls, {*OWN.values()})
    replay = Replay(values=[promises.all[0], None])
    calls.begin(replay, promises.all, (), True)
    return calls, promises.all, replay


METHODS = sorted(vars(type(promises_of(torch.add, ())[1][0])).keys() & OWN.keys() - {"__torch_function__"})


@pytest.mark.parametrize("name", METHODS)
def test_method_of_a_deferred_result_gets_exactly_torchs_arguments(name, monkeypatch):
    args = ARGUMENTS.get(name, (1,))
    function = getattr(Passing(), name)(*args)
    calls, (first, second), replay = promises_of(function, args)
    monkeypatch.setattr(replay, "call", lambda *call: pytest.fail("not answered natively"), raising=False)
    assert getattr(first, name)(*args) is second and calls.is_done(0)
    calls.end()

    calls, (first, _), replay = promises_of(torch.sub, args)  # another call is next
    assert getattr(first, name)(*args) == ("run", (first, *args), {}) and not calls.is_done(0)
    calls.end()

    calls, (first, _), replay = promises_of(function, args)
    if name != "__getitem__":  # torch.Tensor would stay a sequence for C code
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, name, lambda self, *given: ("patched", *given))
            assert getattr(first, name)(*args) == ("patched", *args)
    with Seen() as seen:
        getattr(first, name)(*args)
    assert seen.functions == [function], "a mode sees the call"
    calls.end()


class Seen(torch.overrides.TorchFunctionMode):
    """A mode that remembers the functions that it sees, and runs none."""

    def __init__(self):
        self.functions = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions.append(func)


def test_deferred_result_is_no_sequence_for_c_code():
    calls, (first, _), _ = promises_of(torch.Tensor.__getitem__, (1,))
    assert ctypes.pythonapi.PySequence_Check(ctypes.py_object(first)) == 0
    calls.end()
