"""A split that another process finds is the one that would be found here; what fails there is left to the loop."""

import os
import select
import signal
import threading

import pytest
import torch
from torch import nn

import springtide
from springtide.prep import beside, capture, dynamo_rung, found, searching, split
from springtide.prep.explain import Refusal
from springtide.prep.statefulness import Refused
from tests import waiting
from tests.unit.train import hashed

PATIENCE_S = 60.0


def calls(*rows):
    drawn = torch.Generator().manual_seed(3)
    return [
        ((torch.randint(0, 1000, (each, 3), generator=drawn), torch.rand(each, 2, generator=drawn)), {})
        for each in rows
    ]


def looked_for(model, given):
    """What becomes of it, once it is there."""
    search = beside.Beside(model, given[0], given[1:])
    waiting.until(lambda: search.done, within_s=2 * PATIENCE_S)
    return search.take()


def trained(model):
    """A step further."""
    ((raw, dense), _), *_ = calls(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(raw, dense).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_another_process_has_found_is_what_would_be_found_here_and_runs_on_the_live_model():
    model, given = hashed.make(), calls(8, 8, 4)
    trained(model)
    chance, before = torch.get_rng_state(), {name: one.clone() for name, one in model.state_dict().items()}
    search = beside.Beside(model, given[0], given[1:])
    waiting.until(lambda: search.done, within_s=2 * searching.PATIENCE_S)
    there = search.take()
    assert not search.why
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    here = split.split(model, *given[0], more=given[1:])
    assert isinstance(there, split.Split) and isinstance(here, split.Split)
    assert (there.digest, there.needs) == (here.digest, here.needs)
    trained(model)  # the loop has gone on meanwhile
    held = split.confirm(model, there, *given[0], more=given[1:])
    assert held.explanation.verified == 2
    leaves = list(given[1][0])
    assert torch.equal(held.rest(held.crossing(leaves), leaves), model(*leaves))
    other = os.memfd_create("somebody's")  # has the lowest number that is free: the one of the answer
    search.close()
    os.close(other)
    assert search.done and search.take() is None


def test_a_split_that_no_longer_holds_is_not_confirmed():
    model, given = hashed.make(), calls(8, 8)
    made = split.split(model, *given[0], more=given[1:])
    model.salt = 8  # the moved part has the old one
    with pytest.raises(Refused, match="not equal bit by bit"):
        split.confirm(model, made, *given[0], more=given[1:])


class OnlyHere(nn.Module):
    """Cannot be run in another process: by its own word, by being killed, or by never coming to an end."""

    def __init__(self, how):
        super().__init__()
        self.top, self.how, self.pid = nn.Linear(2, 1), how, os.getpid()

    def forward(self, raw, dense):
        if os.getpid() != self.pid:
            if self.how == "raises":
                raise RuntimeError("a connection that only the trainer has")
            if self.how == "hangs":
                signal.pause()
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        return self.top(dense)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "a connection that only the trainer has"),
        pytest.param("dies", "ended with -9", marks=pytest.mark.soak),
        ("hangs", "longer than"),
    ],
)
def test_what_cannot_be_found_out_beside_is_left_to_the_loop_with_the_reason(monkeypatch, how, why):
    monkeypatch.setattr(searching, "PATIENCE_S", 0.5 if how == "hangs" else searching.PATIENCE_S)
    search = beside.Beside(OnlyHere(how), calls(4)[0], [])
    waiting.until(lambda: search.done, within_s=2 * searching.PATIENCE_S + PATIENCE_S)
    assert search.take() is None
    assert why in search.why


class Marked(nn.Module):
    """Does by a marked function what no tracer follows."""

    def __init__(self):
        super().__init__()
        self.top = nn.Linear(3, 1)

    @springtide.stateless
    def ids(self, raw):
        return torch.tensor([[float(str(one)[:1]) for one in row] for row in raw.tolist()])

    def forward(self, raw, dense):
        return self.top(self.ids(raw))


def check_marked(model, made, given):
    """A function that is known by its identity is the live one, so its calls are answered."""
    assert isinstance(made, split.Split), made
    (call,) = made.rest.calls
    assert call.function is Marked.ids.__wrapped__
    assert 0 not in split.confirm(model, made, *given[0], more=given[1:]).needs


def test_functions_that_are_marked_are_the_live_ones_again_when_what_was_found_is_read_back():
    model, given = Marked(), calls(8, 4)
    known = [Refusal(rung=rung, why="") for rung in (capture.EXPORT, dynamo_rung.NAME)]
    made = split.split(model, *given[0], more=given[1:], known=known)
    check_marked(model, found.read(found.write(made, model), model), given)


@pytest.mark.soak
def test_functions_that_are_marked_are_the_live_ones_again_when_another_process_has_looked():
    model, given = Marked(), calls(8, 4)
    check_marked(model, looked_for(model, given), given)


def test_a_model_that_cannot_be_sent_is_left_to_the_loop_with_the_reason():
    model = hashed.make()
    model.lock = threading.Lock()
    search = beside.Beside(model, calls(4)[0], [])
    assert search.done and search.take() is None
    assert "cannot be sent" in search.why and "lock" in search.why


class Branching(hashed.Hashed):
    """Reads a value in Python: no export takes that."""

    def forward(self, raw, dense):
        ids = hashed.hashed(raw, self.salt)
        scale = 2.0 if ids.max().item() > hashed.ROWS else 1.0
        return self.top(torch.cat([self.bag(ids) * scale, dense], dim=1)).squeeze(1)


@pytest.mark.soak
def test_what_only_dynamo_captures_is_found_beside_the_loop_too():
    model, given = Branching().train(), calls(8, 8, 4)
    trained(model)
    there = looked_for(model, given)
    assert isinstance(there, split.Split) and there.explanation.rung == dynamo_rung.NAME, there.explanation.text()
    trained(model)
    held = split.confirm(model, there, *given[0], more=given[1:])
    assert held.explanation.verified == 2 and held.needs == {1}
    (raw, dense), _ = calls(6)[0]
    assert torch.equal(held.rest(held.crossing([raw, dense]), [object(), dense]), model(raw, dense))


def test_a_search_does_not_outlive_a_loop_that_is_killed():
    told, tell = os.pipe()
    loop = os.fork()
    if loop == 0:
        search = beside.Beside(OnlyHere("hangs"), calls(4)[0], [])
        os.write(tell, str(search._process.pid).encode())
        signal.pause()
    searcher = int(os.read(told, 32))
    watched = os.pidfd_open(searcher)
    os.kill(loop, signal.SIGKILL)
    os.waitpid(loop, 0)
    gone, _, _ = select.select([watched], [], [], PATIENCE_S)
    for descriptor in (told, tell, watched):
        os.close(descriptor)
    assert gone
