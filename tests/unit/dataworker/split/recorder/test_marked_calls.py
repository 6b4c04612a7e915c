"""Functions marked stateless: their state is watched, and wrong marks are refused."""

import pickle
import random
import sys
import threading

import cloudpickle
import numpy as np
import pytest
import torch

import springtide
import springtide as st
from springtide.dataworker.split.recorder import marked_calls
from springtide.dataworker.split.recorder.bit_compare import same
from springtide.dataworker.split.split import Split, Unsplit
from tests.unit.dataworker import programs_to_split
from tests.unit.dataworker.programs_to_split import words
from tests.unit.dataworker.recorded import answered, sent, splitting

FACTOR = 17
CALLS = [words(64, 1), words(64, 2), words(64, 3)]


class Looked(programs_to_split.Base):
    """Looks up words in a dict."""

    def __init__(self):
        super().__init__()
        self.ids = {length: length * 31 for length in range(9)}
        self.more = {}

    @st.stateless
    def hashed(self, words):
        return torch.tensor([[self.ids[len(word)] * FACTOR % 1000, ord(word[0])] for word in words])

    def forward(self, words, dense, *, label):
        return self.score(self.table(self.hashed(words)), dense, label)


def compare_call(model, divided, call, *, complete=True):
    torch.manual_seed(1)
    wanted = model(*call[0], **call[1])
    crossing = sent(divided, call)
    torch.manual_seed(1)
    given, answers = answered(divided, model.forward, call, crossing=crossing)
    assert answers.complete is complete, answers.why
    return same(wanted["score"], given["score"]), answers


@pytest.mark.parametrize("kind", [programs_to_split.Words, Looked])
def test_marked_method_moves_with_its_state_and_without_the_model(kind):
    model = kind().eval()
    divided = splitting(model, CALLS)
    assert isinstance(divided, Split), divided.explanation.text()
    assert [group.operations for group in divided.explanation.moved] == [(f"{kind.__name__}.hashed",)]
    (owner,) = divided.stages[0].run.marked.owners.values()
    assert not list(owner.parameters()) and owner is not model
    assert compare_call(model, divided, words(31, 4))[0]


def replace_function(value):
    globals()["FACTOR"] = value


CHANGES = {
    "an item": (lambda model: model.ids.update({3: 5}), "model.ids"),
    "an attribute": (lambda model: setattr(model, "ids", {length: 1 for length in range(9)}), "model.ids"),
    "a global": (lambda model: replace_function(19), "FACTOR"),
}


@pytest.mark.parametrize(("change", "name"), CHANGES.values(), ids=CHANGES.keys())
def test_marked_function_runs_locally_once_its_state_changed(change, name):
    model = Looked().eval()
    divided = splitting(model, CALLS)
    try:
        crossing = sent(divided, words(31, 4))
        change(model)
        torch.manual_seed(1)
        wanted = model(*words(31, 4)[0], **words(31, 4)[1])
        given, answers = answered(divided, model.forward, words(31, 4), crossing=crossing)
        assert same(wanted["score"], given["score"]) and not answers.complete
        assert answers.why == f"Looked.hashed reads {name}, which has changed"
    finally:
        replace_function(17)


class Rarely(Looked):
    """Adds a word to its dict late in the run."""

    @st.stateless
    def hashed(self, words):
        for word in words:
            if len(word) > 7:
                self.more[word] = len(self.more)
        return torch.tensor([[len(word), len(self.more)] for word in words])


def test_marked_copy_that_changes_its_state_is_not_used_again():
    model = Rarely().eval()
    divided = splitting(model, CALLS)
    assert isinstance(divided, Split), divided.explanation.text()
    run = pickle.loads(cloudpickle.dumps(divided.stages))[0].run
    (given, dense), kwargs = words(8, 4)
    assert run([given, dense, kwargs["label"]]) is not None
    assert run([["w" * 9] * 8, dense, kwargs["label"]]) is None and "has changed model.more" in run.why
    assert run([given, dense, kwargs["label"]]) is None
    model.more["x"] = 0
    assert compare_call(model, divided, words(9, 5), complete=False)[0]


class Drawing(Looked):
    @st.stateless
    def hashed(self, words):
        return torch.tensor([[len(word), random.randrange(5)] for word in words])


class Counting(Looked):
    @st.stateless
    def hashed(self, words):
        self.more[len(self.more)] = 1
        return torch.tensor([[len(word), 1] for word in words])


class Locking(Looked):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Trained(Looked):
    @st.stateless
    def hashed(self, words):
        return torch.tensor([[len(word), int(self.top.bias.item() * 0)] for word in words])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Drawing, "random numbers"),
        (Counting, r"it changes model.more"),
        (Locking, "which cannot be watched"),
        (Trained, "'NoneType'|bias"),
    ],
)
def test_mark_on_a_stateful_function_is_refused(kind, why):
    refused = splitting(kind().train(), CALLS)
    assert isinstance(refused, Unsplit)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(refused.explanation.text())


@springtide.stateless
def doubled(number):
    """Twice."""
    return 2 * number


def test_mark_alone_changes_nothing():
    assert doubled(4) == 8 and doubled.__doc__ == "Twice." and doubled.__springtide_stateless__


def test_listener_answers_only_while_active():
    with marked_calls.handled_by(lambda function, args, kwargs: ("heard", function(*args, **kwargs))):
        assert doubled(4) == ("heard", 8)
        with marked_calls.handled_by(None):
            assert doubled(4) == 8
    assert doubled(4) == 8


def test_marked_function_of_a_script_is_pickled_by_value():
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        sent = cloudpickle.dumps(doubled)
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    assert pickle.loads(sent)(4) == 8


def test_numpys_cached_normal_deviate_counts_as_a_draw():
    np.random.seed(1)
    np.random.randn()
    watched = marked_calls.MarkedCall(doubled.__wrapped__, {})
    assert not watched.why
    np.random.randn()
    assert watched.why == "it draws random numbers"
