"""Native unique on data workers equals torch.unique bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from springtide.dataworker.split.program import moved_program
from springtide.dataworker.split.split import Split
from tests.unit.dataworker.recorded import answered, splitting

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def draw_integers(seed, shape, low, high, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def torch_unique2(tensor, *options):
    return torch.ops.aten._unique2.default(tensor, True, *options)


def same(found, wanted):
    return all(
        a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    "tensor",
    [
        draw_integers(1, (64, 40), -50, 700),
        draw_integers(2, (64, 40), LEAST, MOST),
        draw_integers(3, (3000,), 0, 1 << 40),
        draw_integers(4, (40, 64), 0, 1 << 30).t(),
        draw_integers(5, (2048,), -9, 1 << 30, torch.int32),
        draw_integers(6, (5000,), 4, 5),
        torch.cat([draw_integers(7, (3000,), 0, 1 << 14), torch.tensor([MOST, LEAST, MOST])]),
        draw_integers(8, (6000,), 0, 99)[::3],
    ],
    ids=["buckets", "hashes", "ids", "turned", "int32", "one value", "outliers", "strided"],
)
def test_unique2_gives_the_result_of_torch(tensor, inverse, counts):
    assert same(moved_program.unique2(tensor, True, inverse, counts), torch_unique2(tensor, inverse, counts))
    options = {"return_inverse": inverse, "return_counts": counts}
    proven, wanted = moved_program.proven_unique(tensor, **options), torch.unique(tensor, **options)
    assert same(proven, wanted) if inverse or counts else same([proven], [wanted])


def swapped(values, inverse, counts):
    return values.flip(0), len(values) - 1 - inverse, counts.flip(0)


def one_more(values, inverse, counts):
    return torch.cat([values, values[-1:] + 1]), inverse, torch.cat([counts, counts[:1] * 0])


def miscounted(values, inverse, counts):
    return values, inverse, counts.roll(1) + torch.arange(len(counts))


def negative(values, inverse, counts):
    return values, torch.where(inverse == len(values) - 1, -1, inverse), counts


def misplaced(values, inverse, counts):
    return values, inverse.roll(1), counts


@pytest.mark.parametrize("wrong", [swapped, one_more, miscounted, negative, misplaced])
def test_wrong_native_unique_result_is_not_used(monkeypatch, wrong):
    tensor = draw_integers(1, (3000,), 0, 700)
    monkeypatch.setattr(moved_program, "unique2", lambda *_: wrong(*torch_unique2(tensor, True, True)))
    assert same(moved_program.proven_unique(tensor, True, True, True), torch_unique2(tensor, True, True))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2000),
        draw_integers(1, (2000,), 0, 2, torch.bool),
        draw_integers(2, (2000,), 0, 9, torch.int16),
        draw_integers(3, (7,), 0, 5),
        torch.empty(0, 3, dtype=torch.int64),
        torch.tensor(3),
    ],
    ids=["floats", "bool", "int16", "few", "none", "a scalar"],
)
def test_unsupported_unique_input_falls_back_to_torch(tensor):
    assert same(moved_program.unique2(tensor, True, True, True), torch_unique2(tensor, True, True))


@settings(deadline=None, max_examples=60)
@given(
    seeds=st.integers(0, 1 << 30),
    ranges=st.lists(st.tuples(st.integers(LEAST, MOST), st.integers(0, 63)), min_size=1, max_size=4),
)
def test_unique_is_exact_for_any_mixture_of_ranges(seeds, ranges):
    parts = [
        draw_integers(seeds, (700,), begin, min(MOST, begin + (1 << bits))) for begin, bits in ranges if begin < MOST
    ]
    tensor = torch.cat([*parts, draw_integers(seeds, (1100,), 0, 9)])
    assert same(moved_program.unique2(tensor, True, True, True), torch_unique2(tensor, True, True))


class Hashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(100, 2)

    def forward(self, ids):
        there, places = torch.unique(ids * 7919 % 100, return_inverse=True)
        return self.rows(there)[places].sum()


def test_split_program_runs_native_unique_on_data_workers(monkeypatch):
    model = Hashed()
    calls = [((draw_integers(seed, (64, 30), 0, 5000),), {}) for seed in range(3)]
    made = splitting(model, calls)
    assert isinstance(made, Split), made.explanation.text()
    ids, times = draw_integers(3, (90, 30), 0, 5000), []
    native = moved_program._native.distinct
    monkeypatch.setattr(moved_program._native, "distinct", lambda *given: times.append(1) or native(*given))
    given, answers = answered(made, model.forward, ((ids,), {}))
    assert torch.equal(given, model(ids)) and answers.complete and times


@pytest.mark.parametrize(
    "options", [{}, {"return_inverse": True}, {"return_counts": True}, {"sorted": False}, {"dim": 1}]
)
def test_unique_takes_the_arguments_of_torch_unique(options):
    tensor = draw_integers(5, (64, 30), 0, 90)
    found, wanted = moved_program.unique(tensor, **options), torch.unique(tensor, **options)
    as_list = lambda made: list(made) if isinstance(made, tuple) else [made]  # noqa: E731
    assert type(found) is type(wanted) and same(as_list(found), as_list(wanted))
