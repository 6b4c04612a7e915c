"""What torch.export does not take: dynamo's first graph, the user's own mark; what is said of each."""

import copy
import pickle
from dataclasses import replace

import cloudpickle
import pytest
import torch

import springtide as st
from springtide.prep import capture, leaves
from springtide.prep.explain import Refusal
from springtide.prep.split import Split, Unsplit, split
from springtide.prep.trial import Trial
from springtide.prep.untouched import same
from tests.unit.prep import programs_to_split as programs
from tests.unit.prep.programs_to_split import batch, words


def splitting(model, calls):
    return split(model, *calls[0], more=calls[1:])


def gives_the_same(model, divided, call, seed=1):
    """Whether both forwards give the same outputs, gradients and buffers."""
    own = copy.deepcopy(model)
    torch.manual_seed(seed)
    wanted = own(*call[0], **call[1])
    found, _ = leaves.flatten(call)
    crossing = pickle.loads(cloudpickle.dumps(divided.stages))[0].run(found)
    kept = [leaf if at in divided.needs else object() for at, leaf in enumerate(found)]
    torch.manual_seed(seed)
    given = divided.rest(crossing, kept)
    model.zero_grad(), own.zero_grad()
    wanted["loss"].backward(), given["loss"].backward()
    grads = zip(own.parameters(), model.parameters(), strict=True)
    return (
        same(wanted["score"], given["score"])
        and all((one.grad is None and other.grad is None) or same(one.grad, other.grad) for one, other in grads)
        and all(same(one, other) for one, other in zip(own.buffers(), model.buffers(), strict=True))
    )


@pytest.fixture(scope="module")
def branches():
    model = programs.Branches().train()
    return model, splitting(model, [batch(64, 1), batch(64, 2), batch(17, 3)])


def test_a_branch_on_a_value_leaves_dynamos_first_graph_to_move(branches):
    model, divided = branches
    assert isinstance(divided, Split), divided.explanation.text()
    told = divided.explanation
    assert told.rung == "dynamo's first graph" and divided.needs == {1, 2}, "the ids themselves stay behind"
    assert {"mul", "add", "mod", "item"} <= {name for group in told.moved for name in group.operations}
    stopped = told.stayed[-1]
    assert stopped.text == "if hashed.max().item() > 990:" and "programs_to_split.py:" in stopped.line
    assert [refusal.rung for refusal in told.refusals] == ["torch.export"]
    assert all(refusal.text == stopped.text for refusal in told.refusals)
    assert gives_the_same(model, divided, batch(64, 4)) and gives_the_same(model, divided, batch(23, 5))


def test_rungs_that_are_known_not_to_hold_are_not_tried_again(branches, monkeypatch):
    model, divided = branches
    calls, known = [batch(64, 1), batch(17, 3)], divided.explanation.refusals
    monkeypatch.setattr(Trial, "exported", lambda self: pytest.fail("tried again"))
    monkeypatch.setattr(Trial, "begun", lambda self, refusals: divided)
    again = split(model, *calls[0], more=calls[1:], known=known)
    assert isinstance(again, Split) and again.explanation.refusals == known


def test_a_forward_that_goes_another_way_than_it_did_makes_its_calls_itself(branches):
    model, divided = branches
    model.salt += 1
    assert gives_the_same(model, replace(divided, needs=frozenset({0, 1, 2})), batch(64, 6))
    model.salt -= 1


@pytest.mark.soak
def test_a_batch_size_that_dynamo_gives_for_two_inputs_is_read_off_one_of_them():
    model, calls = programs.Counting().train(), [batch(64, 1), batch(17, 3)]
    known = [Refusal(rung=capture.EXPORT, why="")]
    divided = split(model, *calls[0], more=calls[1:], known=known)
    assert isinstance(divided, Split), divided.explanation.text()
    assert divided.explanation.rung == "dynamo's first graph"
    assert gives_the_same(model, divided, batch(31, 4))


def test_numpy_in_forward_keeps_it_whole_and_a_mark_is_advised():
    """torch computes some of NumPy's functions itself when it traces them, and rounds otherwise."""
    divided = splitting(programs.Arrays().train(), [batch(64, 1), batch(17, 3)])
    assert isinstance(divided, Unsplit), divided.explanation.text()
    assert "np.minimum" in divided.explanation.refusals[0].text
    assert "since it calls NumPy" in divided.explanation.why and "@springtide.stateless" in divided.explanation.why


def test_a_marked_method_moves_with_its_constants_and_without_the_model():
    model = programs.Words().train()
    divided = splitting(model, [words(64, 1), words(64, 2), words(17, 3)])
    assert isinstance(divided, Split), divided.explanation.text()
    told = divided.explanation
    assert "marked" in told.rung and told.moved[0].operations == ("Words.hashed",)
    assert "list of str" in told.refusals[0].why
    assert divided.needs == {1, 2}, "the words themselves stay behind"
    assert gives_the_same(model, divided, words(31, 4))


class Trained(programs.Base):
    @st.stateless
    def shifted(self, ids):
        return ids + int(self.top.bias.item() * 0)

    def forward(self, ids, dense, *, label):
        rows = 1000 + 0 * len(ids[1])  # no tracer follows that
        return self.score(self.table(self.shifted(ids[0]) % rows), dense, label)


def test_a_mark_on_what_reads_a_parameter_is_not_believed():
    call = lambda size: (([batch(size)[0][0], "x" * size], batch(size)[0][1]), batch(size)[1])  # noqa: E731
    refused = splitting(Trained().train(), [call(8), call(5)])
    assert isinstance(refused, Unsplit)
    assert "'NoneType'" in refused.explanation.refusals[-1].why or "bias" in refused.explanation.refusals[-1].why


class Fixed(programs.Base):
    def forward(self, ids, dense, *, label):
        scale = {64: 1, 17: 2}[int(ids.shape[0])]
        return self.score(self.table(ids * scale % 1000), dense, label)


def test_a_size_that_is_read_in_python_is_noticed_on_a_batch_of_another():
    refused = splitting(Fixed().train(), [batch(64, 1), batch(17, 2)])
    assert isinstance(refused, Unsplit)
    for refusal in refused.explanation.refusals[:2]:
        assert "which forward() fixes to 64" in refusal.why, refused.explanation.text()


def test_the_story_fits_80_columns_and_is_plain_values_too(branches):
    told = branches[1].explanation
    assert max(map(len, told.text().splitlines())) <= 80
    for word in ("Moves to data workers:", "Stays with the trainer:", "Over the cut:", "Time:", "What did not work:"):
        assert word in told.text()
    plain = told.to_json()
    assert plain["rung"] == "dynamo's first graph" and 0 <= plain["moved_share"] <= 1
