"""Detect and name any change of state that user code can read."""

import functools
import os
import pickle
import random
import threading
import types
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from springtide.dataworker.split.recorder import reachable_state
from springtide.dataworker.split.recorder.reachable_state import CopyWatch, ReachableState
from tests.unit.dataworker import user_settings

NUMBER = 3
NESTED = {"a": [1, 2]}


@dataclass
class Settings:
    real: float = 1.0


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 1


class Base:
    inherited = 1


class Data(Base):
    """All kinds of things that a data set may hold."""

    kind = "clicks"

    def __init__(self):
        self.array, self.large = np.ones(100, np.float32), np.zeros(1 << 16)
        self.tensor, self.table = torch.ones(10), {}
        self.rows = [[number, str(number)] for number in range(600)]
        self.settings, self.space, self.slotted = Settings(), types.SimpleNamespace(deep=[1]), Slotted()
        self.drawn, self.numpys = random.Random(3), np.random.default_rng(3)
        self.torchs = torch.Generator().manual_seed(3)
        self.some, self.queue, self.raw = {1, 2}, deque([1, 2]), bytearray(b"ab")
        self.part, self.file, self.pair = functools.partial(max, 3), None, ([1], {"x": 1})
        self.net = nn.Linear(2, 2)

    def __getitem__(self, index):
        environment = int(os.environ.get("REACHABLE", "0"))
        return helper(self.array[index]) * user_settings.MODE + NUMBER + NESTED["a"][0] + environment

    def __len__(self):
        return 5


def helper(value, scale=[2]):  # noqa: B006
    return value * scale[0]


def setting(**values):
    globals().update(values)


CHANGES = {
    "array": (lambda data: data.array.__setitem__(3, 5), "data.array"),
    "in place": (lambda data: data.tensor.add_(1), "data.tensor"),
    "by data": (lambda data: data.tensor.data.add_(1), "data.tensor"),
    "by NumPy": (lambda data: data.tensor.numpy().fill(7), "data.tensor"),
    "swapped": (lambda data: setattr(data.tensor, "data", torch.zeros(10)), "data.tensor"),
    "replaced": (lambda data: setattr(data, "tensor", torch.ones(10)), "data.tensor"),
    "dict": (lambda data: data.table.update(x=1), "data.table"),
    "list in a list": (lambda data: data.pair[0].append(2), "data.pair[0]"),
    "dict in a tuple": (lambda data: data.pair[1].update(x=2), "data.pair[1]"),
    "dataclass": (lambda data: setattr(data.settings, "real", 2.0), "data.settings.real"),
    "namespace": (lambda data: data.space.deep.append(1), "data.space.deep"),
    "slots": (lambda data: setattr(data.slotted, "value", 2), "data.slotted.value"),
    "random": (lambda data: data.drawn.random(), "data.drawn"),
    "NumPy's random": (lambda data: data.numpys.random(), "data.numpys"),
    "torch's random": (lambda data: torch.rand(1, generator=data.torchs), "data.torchs"),
    "set": (lambda data: data.some.add(3), "data.some"),
    "deque": (lambda data: data.queue.append(3), "data.queue"),
    "bytes": (lambda data: data.raw.extend(b"c"), "data.raw"),
    "class": (lambda data: setattr(Data, "kind", "views"), "Data.kind"),
    "inherited": (lambda data: setattr(Base, "inherited", 2), "Base.inherited"),
    "method": (lambda data: setattr(Data, "__len__", lambda self: 6), "Data.__len__"),
    "global": (lambda data: setting(NUMBER=4), "NUMBER"),
    "nested global": (lambda data: NESTED["a"].append(3), "NESTED['a']"),
    "module": (lambda data: setattr(user_settings, "MODE", 2), "user_settings.MODE"),
    "environment": (lambda data: os.environ.__setitem__("REACHABLE", "7"), "the environment"),
    "default": (lambda data: helper.__defaults__[0].append(3), "helper.__defaults__[0]"),
    "function": (lambda data: setting(helper=lambda value: value), "helper"),
    "weight": (lambda data: data.net.weight.data.add_(1), "data.net._parameters['weight']"),
    "mode": (lambda data: data.net.eval(), "data.net.training"),
    "new": (lambda data: setattr(data, "more", 1), "data"),
    "gone": (lambda data: delattr(data, "array"), "data.array"),
    "opened": (lambda data: setattr(data, "file", object()), "data.file"),
}


@pytest.fixture
def data():
    own, number = dict(vars(Data)), helper
    try:
        yield Data()
    finally:
        Data.kind, Data.__len__, Base.inherited = own["kind"], own["__len__"], 1
        setting(NUMBER=3, helper=number)
        NESTED["a"][:] = [1, 2]
        number.__defaults__[0][:] = [2]
        user_settings.MODE = 1
        os.environ.pop("REACHABLE", None)


@pytest.mark.parametrize(("change", "name"), CHANGES.values(), ids=CHANGES.keys())
def test_state_change_is_reported_by_name(data, change, name):
    state = ReachableState({"data": data})
    assert state.changed() == "" == state.changed()
    change(data)
    assert state.changed() == name


def test_deep_or_large_state_is_checked_in_turn(data):
    for change in (lambda: data.rows[599].append(1), lambda: data.rows.__setitem__(400, 1), lambda: data.large.fill(1)):
        state = ReachableState({"data": data})
        change()
        assert any(state.changed() for _ in range(200))


def test_equal_value_is_no_change(data):
    state = ReachableState({"data": data})
    data.settings.real, data.table = 0.5 + 0.5, data.table
    user_settings.UNREAD.append(1)
    data.net.register_forward_hook(lambda *_: None)
    assert all(state.changed() == "" for _ in range(100))


def test_equal_item_of_a_long_list_is_no_change_and_hides_none(data):
    data.words = [f"word {number}" for number in range(600)]
    state = ReachableState({"data": data})
    data.words[400] = "".join(("word", " ", "400"))
    assert all(state.changed() == "" for _ in range(9))
    data.words[599] = "another"
    assert "data.words" in [state.changed() for _ in range(9)]


def test_names_without_a_value_are_tracked(data):
    del data.slotted.value

    def read(index):
        return data[index] * number

    state = ReachableState({"read": read})
    data.slotted.value = 1
    assert state.changed(lenient=True) == "" and state.changed(lenient=True) == ""
    number = 3
    assert state.changed() == "number"
    assert ReachableState({"read": read}).changed() == ""


array = "the script's own, of the same name as an attribute"


def late(index):
    from tests.unit.dataworker.user_settings import MODE

    return MODE * index


def test_global_with_an_attributes_name_is_not_tracked(data):
    state = ReachableState({"data": data})
    setting(array="another")
    assert state.changed() == ""


def test_state_imported_inside_a_function_is_tracked(data):
    state = ReachableState({"late": late})
    user_settings.MODE = 2
    assert state.changed() == "tests.unit.dataworker.user_settings.MODE"


def test_closures_and_bound_objects_are_tracked():
    number, held = 3, Data()

    def read(index):
        return held[index] * number

    state, method = ReachableState({"fetch": read}), ReachableState({"fetch": held.__getitem__})
    held.array[0] = 7
    assert state.changed() == "held.array" and "array" in method.changed()
    number = 4
    assert ReachableState({"fetch": read}).changed() == ""


def test_files_and_indices_opened_on_first_use_are_no_change(data):
    state = ReachableState({"data": data})
    data.file = [1, 2]
    assert state.changed(lenient=True) == "" and state.changed(lenient=True) == ""
    data.file = [1, 2, 3]
    assert state.changed(lenient=True) == "data.file"


def test_opaque_state_is_named(data):
    assert not ReachableState({"data": data}).opaque
    data.lock = threading.Lock()
    assert ReachableState({"data": data}).opaque == ["data.lock"]


def test_dict_is_compared_by_items_where_torch_has_no_versions(data, monkeypatch):
    monkeypatch.setattr(reachable_state, "dict_version", len)
    state = ReachableState({"data": data})
    data.table["x"] = 1
    assert state.changed() == "data.table"


def test_copy_that_changed_itself_stays_marked_as_changed(data):
    watch = CopyWatch()
    watch.begin(data=data)
    assert watch.changed() == ""
    data.table["word"] = 1
    assert watch.changed() == "data.table"
    del data.table["word"]
    assert watch.changed() == "data.table"
    assert pickle.loads(pickle.dumps(watch)).changed() == ""
