"""Whatever a forward mixes, its split gives the same bits, gradients and buffers, or there is none and it says why."""

import copy
import pickle

import cloudpickle
import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from springtide.prep import leaves
from springtide.prep.split import Split, split
from springtide.prep.untouched import same

WHOLE = {
    "hash": lambda m, a, b: (a * 2654435761 + 7) % 97,
    "cross": lambda m, a, b: (a * 31 + b) % 97,
    "bucket": lambda m, a, b: torch.bucketize(a.float() / 97, m.edges),
    "clip": lambda m, a, b: written(a),
    "unique": lambda m, a, b: torch.unique(a, return_inverse=True)[1],
    "sort": lambda m, a, b: a.sort(1).values,
    "flip": lambda m, a, b: a.flip(1),
    "column": lambda m, a, b: a[:, :1] + b,
    "where": lambda m, a, b: torch.where(a > b, a, b),
    "constant": lambda m, a, b: (a + torch.arange(3)) % 97,
    "count": lambda m, a, b: counted(m, a),
}
REAL = {
    "log": lambda m, x, y: torch.log1p(x.abs()),
    "mix": lambda m, x, y: x * 0.5 + y,
    "linear": lambda m, x, y: m.linear(x),
    "norm": lambda m, x, y: m.norm(x),
    "drop": lambda m, x, y: m.drop(x),
    "noise": lambda m, x, y: x + torch.rand_like(x),
    "mean": lambda m, x, y: x - x.mean(0),
    "still": lambda m, x, y: still(x),
    "square": lambda m, x, y: y.clone().mul_(x),
}


def written(ids):
    own = ids.clone()
    own[own < 5] = 0
    return own


def counted(model, ids):
    model.seen.add_(1)
    return (ids + model.seen) % 97


def still(x):
    with torch.no_grad():
        return torch.tanh(x)


class Random(nn.Module):
    """Runs a recipe: steps over whole numbers, lookups, steps over real ones."""

    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe
        self.table = nn.EmbeddingBag(200, 3, mode="sum")
        self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False), nn.Dropout(0.3)
        self.register_buffer("edges", torch.linspace(0, 1, 9))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, ids, dense):
        whole, real = [ids % 97], [dense]
        for kind, name, one, other in self.recipe:
            if kind == "whole":
                whole.append(WHOLE[name](self, whole[one % len(whole)], whole[other % len(whole)]))
            elif kind == "real":
                real.append(REAL[name](self, real[one % len(real)], real[other % len(real)]))
            elif kind == "look":
                real.append(self.table(whole[one % len(whole)]))
            else:
                real.append(whole[one % len(whole)].float())
        return {"out": self.linear(real[-1] + real[len(real) // 2]), "ids": whole[-1]}


places = st.integers(0, 9)
steps = st.one_of(
    st.tuples(st.just("whole"), st.sampled_from(sorted(WHOLE)), places, places),
    st.tuples(st.just("real"), st.sampled_from(sorted(REAL)), places, places),
    st.tuples(st.just("look"), st.just(""), places, places),
    st.tuples(st.just("float"), st.just(""), places, places),
)


def call(size, seed):
    draw = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 1 << 40, (size, 3), generator=draw), torch.randn(size, 3, generator=draw)), {}


@pytest.mark.soak
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=80, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(st.lists(steps, min_size=2, max_size=10))
def test_a_split_of_any_program_trains_as_the_program_itself(recipe):
    torch.manual_seed(1)
    model = Random(recipe).train()
    divided = split(model, *call(16, 1), more=[call(16, 2), call(5, 3)])
    told = divided.explanation
    if not isinstance(divided, Split):
        assert told.why.startswith(("nothing can move", "only views")), told.text()
        return
    own, stages = copy.deepcopy(model), pickle.loads(cloudpickle.dumps(divided.stages))
    left, right = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (own, model))
    for step, size in enumerate((9, 16, 2)):
        args, kwargs = call(size, 10 + step)
        found, _ = leaves.flatten((args, kwargs))
        torch.manual_seed(step)
        wanted = own(*args)
        made = found
        for stage in stages:
            made = stage.run(made)
        assert made is not None
        torch.manual_seed(step)
        given = divided.rest(made, [leaf if at in divided.needs else None for at, leaf in enumerate(found)])
        assert same(wanted["out"], given["out"]) and same(wanted["ids"], given["ids"]), told.text()
        for optimizer, out in ((left, wanted), (right, given)):
            optimizer.zero_grad()
            out["out"].square().sum().backward()
            optimizer.step()
    for (name, one), other in zip(own.state_dict().items(), model.state_dict().values(), strict=True):
        assert same(one, other), f"{name}\n{told.text()}"
    assert divided.stale() == ""
