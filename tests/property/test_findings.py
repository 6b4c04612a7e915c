"""Each fault that was once found by hand is found by random histories when its fix is taken out.

With the fix in, the same histories hold. docs/design/simulation-testing.md has the number of histories that each took.
"""

import pytest

from springtide import _native
from springtide.checkpoint.transfer import claims
from springtide.domain.model.checkpoints import Lineage
from springtide.server.checkpoints import SlotSaver
from tests.virtual_jobs import search

SEED, MOST = 1, 200
push_once = _native.Store.push_once


def claim_anyway(place, mine, *, option=""):
    """A run that writes to any folder, whoever uses it."""
    return claims.name_of(1)


def record_first(self, tables, keys, grads, hyper, batches, speaks_for=None, **options):
    """A store that records identities before it knows that the rows have room."""
    _, shard, first, count = batches[0]
    end = first + count
    slots = self.slot_of(0, keys)
    new = [
        not any(begin <= (shard, first) and (shard, end) <= until for begin, until in spans(self.applied(slot)))
        for slot in slots
    ]
    stats = push_once(self, tables[:0], keys[:0], grads[:0], hyper, batches, speaks_for, **options)
    new = [fresh and slot not in stats.torn for fresh, slot in zip(new, slots, strict=True)]
    if any(new):
        self.push(tables[new], keys[new], grads[new], hyper, unique=True)
    return stats


def spans(applied):
    return [((shard, first), (last, end)) for shard, first, last, end in applied]


TAKEN_OUT = {
    "two jobs of one name restore each other's slots": [
        (claims, "take", claim_anyway),
        (Lineage, "refusal", lambda self, run, number, job: ""),
    ],
    "a missing segment file is never noticed": [(SlotSaver, "_leave_lost_chains", lambda self: ())],
    "identities are recorded before rows": [(_native.Store, "push_once", record_first)],
}


def test_nothing_is_wrong_in_short_histories():
    _, history = search.first_violation(SEED, 100)
    assert history is None, "\n".join(search.tell(history))


@pytest.mark.parametrize("finding", TAKEN_OUT)
def test_a_finding_is_found_again_without_its_fix(finding, monkeypatch):
    for where, name, instead in TAKEN_OUT[finding]:
        monkeypatch.setattr(where, name, instead)
    tried, history = search.first_violation(SEED, MOST)
    assert history is not None, f"nothing was wrong in {tried} histories"
    print(f"{finding}: found after {tried} histories", *search.tell(history), sep="\n")
    monkeypatch.undo()
    tried, history = search.first_violation(SEED, tried)
    assert history is None, "\n".join(search.tell(history))
