"""Texts and keys that a batch carries along and forward() does not read keep nothing from moving."""

import copy
import pickle

import pytest
import torch

from springtide.prep import leaves, unread
from springtide.prep.split import Split, Unsplit, split
from springtide.prep.untouched import same
from tests.unit.prep import programs_to_split as programs


class Carrying(programs.Base):
    """Is given a batch with names, which it does not look at."""

    def forward(self, batch):
        hashed = (batch["ids"] * 2654435761 + self.salt) % 997
        return self.score(self.table(hashed), batch["dense"], batch["label"])


class Looking(programs.Base):
    """Looks at them, though nothing comes of it in these batches."""

    def forward(self, batch):
        hashed = (batch["ids"] * 2654435761 + self.salt) % 997
        if any(name == "somebody" for name in batch["names"]):
            hashed = hashed + 1
        return self.score(self.table(hashed), batch["dense"], batch["label"])


def call(rows, seed):
    (ids, dense), kwargs = programs.batch(rows, seed)
    names = [f"user-{seed}-{row}" for row in range(rows)]
    return ({"ids": ids, "names": names, "step": seed, "dense": dense, "label": kwargs["label"]},), {}


def test_what_a_batch_carries_and_nobody_reads_does_not_keep_forward_whole():
    model = Carrying().train()
    found = split(model, *call(16, 1), more=[call(16, 2)])
    assert isinstance(found, Split), found.explanation.text()
    given, _ = leaves.flatten(call(24, 9))
    own = copy.deepcopy(model)
    torch.manual_seed(3)
    wanted = own(*call(24, 9)[0])
    crossing = pickle.loads(pickle.dumps(found.stages[0].run.guard)).refuses(given) or found.crossing(given)
    torch.manual_seed(3)
    made = found.rest(crossing, [leaf if at in found.needs else object() for at, leaf in enumerate(given)])
    assert same(wanted["score"], made["score"])
    given[1] = None
    assert found.crossing(given) is None, "a program may ask whether it is there: that was never tried"


def test_what_forward_reads_of_it_is_named_with_its_line_though_it_made_no_difference():
    found = split(Looking().train(), *call(16, 1), more=[call(16, 2)])
    assert isinstance(found, Unsplit)
    assert "list of str that changes from batch to batch" in found.explanation.why
    assert 'batch["names"]' in found.explanation.why


@pytest.mark.parametrize(
    "look",
    [
        len, list, bool, str, repr, hash, iter, copy.deepcopy, torch.tensor, torch.as_tensor, sorted,
        lambda it: it == "a", lambda it: it != "a", lambda it: "a" in it, lambda it: it[0], lambda it: it + 1,
        lambda it: 1 - it, lambda it: 2 * it, lambda it: it % 3, lambda it: it < 3, lambda it: isinstance(it, list),
        lambda it: hasattr(it, "shape"), lambda it: getattr(it, "shape", None), lambda it: f"{it}", lambda it: [0][it],
        lambda it: {it: 1}, lambda it: it.append(1), lambda it: torch.ones(2) * it, lambda it: [*it], int, float,
        lambda it: "".join(it), lambda it: [1].__contains__(it), lambda it: max(it, 3), lambda it: it(),
    ],
)  # fmt: skip
def test_nobody_looks_at_it_unnoticed(look):
    with pytest.raises((unread.Read, TypeError)):
        look(unread.Unread("it was read"))


def test_it_can_be_passed_on_and_put_away():
    it = unread.Unread("it was read")
    held = {"name": it, "pair": (it, [it])}
    first, (second, [third]) = held["name"], held["pair"]
    assert first is second is third is it
