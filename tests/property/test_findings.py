"""Each fault that was once found by hand, and each rule, is found by random histories when it is taken out.

With the fix in, the same histories hold. docs/design/simulation-testing.md has the number of histories that each took.
"""

import random
from dataclasses import replace

import pytest

from springtide import _native
from springtide.checkpoint.transfer import claims
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data import samples
from springtide.domain.model.checkpoints import Lineage
from springtide.job import bsp_group
from springtide.master.checkpoint.round import CheckpointStore
from springtide.server.checkpoints import SlotSaver
from tests.virtual_jobs import counting_oracle, histories, search
from tests.virtual_jobs.histories import Case, Fault

SEED, MOST = 1, 200  # the seeds below are near the first one that shows each finding, to save time
push_once, check_slots = _native.Store.push_once, CheckpointStore.check_slots


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


def stay(self, note):
    """A ledger that does not go back."""
    self.era += 1
    return 0


def note_late(self, record, owners):
    """A checkpoint whose note of the ledger is younger than its slots."""
    if self.round is not None:
        self.round.note = record.book.note()
    return check_slots(self, record, owners)


TAKEN_OUT = {
    "two jobs of one name restore each other's slots": (
        135,
        [(claims, "take", claim_anyway), (Lineage, "refusal", lambda self, run, number, job: "")],
    ),
    "a group takes its step from servers, of which one knows none": (
        13,
        [(bsp_group, "step_to_continue", lambda on_servers, **known: on_servers)],
    ),
    "a missing segment file is never noticed": (17, [(SlotSaver, "_leave_lost_chains", lambda self: ())]),
    "a log made anew is not recognised": (77, [(samples, "check_same_stream", lambda now, before: None)]),
    "identities are recorded before rows": (22, [(_native.Store, "push_once", record_first)]),
    "the ledger does not go back with the slots": (1, [(JobLedger, "restore", stay)]),
    "a checkpoint's note of the ledger is younger than its slots": (149, [(CheckpointStore, "check_slots", note_late)]),
}


def test_nothing_is_wrong_in_short_histories():
    _, history = search.first_violation(SEED, 20)
    assert history is None, "\n".join(search.tell(history))


@pytest.mark.parametrize("finding", TAKEN_OUT)
def test_a_finding_is_found_again_without_its_fix(finding, monkeypatch):
    first, changes = TAKEN_OUT[finding]
    for where, name, instead in changes:
        monkeypatch.setattr(where, name, instead)
    tried, history = search.first_violation(first, MOST)
    assert history is not None, f"nothing was wrong in {tried} histories"
    print(f"{finding}: found after {tried} histories", *search.tell(history), sep="\n")
    monkeypatch.undo()
    tried, history = search.first_violation(first, tried)
    assert history is None, "\n".join(search.tell(history))


def test_a_stream_that_is_complete_in_the_checkpoint_ends_at_once():
    same_log = next(seed for seed in range(100) if random.Random(seed).random() > 0.5)
    for seed in range(SEED + 2, SEED + 5):
        setup = replace(histories.draw(seed).setup, log=counting_oracle.VirtualLog((1, 1), 512), save_every_s=0.4)
        whole = histories.happen(Case(seed, setup, ()))
        for at in (at for at, _, what in whole.story if "outcome=complete" in what):
            history = histories.happen(Case(seed, setup, (Fault(at + 0.05, "resume", same_log),)))
            assert not history.violations, "\n".join(search.tell(history))
