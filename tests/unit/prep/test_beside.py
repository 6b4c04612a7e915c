"""A split that a fork has looked for is the one that would be found here, and what goes wrong there is done here."""

import os
import select
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from springtide.prep import beside, split
from springtide.prep.explain import Explanation, Refusal
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
    searching = beside.Beside(model, given[0], given[1:])
    waiting.until(lambda: searching.done, within_s=PATIENCE_S)
    return searching.take()


def trained(model):
    """A step further: what torch's engine has run once does not work in a fork."""
    ((raw, dense), _), *_ = calls(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(raw, dense).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_a_fork_has_found_is_what_would_be_found_here_and_runs_on_the_live_model():
    model, given = hashed.make(), calls(8, 8, 4)
    trained(model)
    chance, before = torch.get_rng_state(), {name: one.clone() for name, one in model.state_dict().items()}
    found = looked_for(model, given)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    here = split.split(model, *given[0], more=given[1:])
    assert isinstance(found, split.Split) and isinstance(here, split.Split)
    assert (found.digest, found.needs) == (here.digest, here.needs)
    trained(model)  # the loop has gone on meanwhile
    held = split.confirm(model, found, *given[0], more=given[1:])
    assert held.explanation.verified == 2
    leaves = list(given[1][0])
    assert torch.equal(held.rest(held.crossing(leaves), leaves), model(*leaves))


def test_a_split_that_no_longer_holds_is_not_confirmed():
    model, given = hashed.make(), calls(8, 8)
    found = split.split(model, *given[0], more=given[1:])
    model.salt = 8  # the moved part has the old one
    with pytest.raises(Refused, match="not equal bit by bit"):
        split.confirm(model, found, *given[0], more=given[1:])


class OnlyHere(nn.Module):
    """Cannot be run in a fork: by its own word, by being killed, or by never coming to an end."""

    def __init__(self, how):
        super().__init__()
        self.top, self.how, self.pid = nn.Linear(2, 1), how, os.getpid()

    def forward(self, raw, dense):
        if os.getpid() != self.pid:
            if self.how == "raises":
                raise RuntimeError("a connection that a fork does not have")
            if self.how == "hangs":
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.top(dense)


@pytest.mark.parametrize("how", ["raises", "dies", "hangs"])
def test_what_cannot_be_found_out_beside_is_left_to_the_loop(monkeypatch, how):
    monkeypatch.setattr(beside, "PATIENCE_S", 0.5 if how == "hangs" else PATIENCE_S)
    assert looked_for(OnlyHere(how), calls(4)) is None


def test_of_what_only_dynamo_captures_a_fork_tells_what_need_not_be_tried_again(monkeypatch):
    refusals = (Refusal(rung="torch.export", why="a branch", line="model.py:3"),)
    told = Explanation(rung="dynamo's first graph", refusals=refusals)
    monkeypatch.setattr(split, "split", lambda *given, **more: SimpleNamespace(explanation=told))
    assert looked_for(hashed.make(), calls(4)) == beside.Climbed(refusals)


def test_a_search_does_not_outlive_a_loop_that_is_killed():
    told, tell = os.pipe()
    loop = os.fork()
    if loop == 0:
        searching = beside.Beside(OnlyHere("hangs"), calls(4)[0], [])
        os.write(tell, str(searching._pid).encode())
        signal.pause()
    searcher = int(os.read(told, 32))
    watched = os.pidfd_open(searcher)
    os.kill(loop, signal.SIGKILL)
    os.waitpid(loop, 0)
    gone, _, _ = select.select([watched], [], [], PATIENCE_S)
    for descriptor in (told, tell, watched):
        os.close(descriptor)
    assert gone
