"""When a checkpoint round begins, which reports complete it, and what its end leaves: without servers."""

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from springtide.checkpoint.transfer import claims
from springtide.data.ledger.async_ledger import AsyncLedger
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.model.checkpoints import CheckpointRules, SlotExtent, Written
from springtide.domain.model.tables import SHARED_KEY
from springtide.master.checkpoint import round as rounds
from springtide.master.checkpoint.round import MOST_PARTS, CheckpointStore, trained
from springtide.rpc.messages.checkpoints import SaveReport
from tests.unit.checkpoint import stores

RULES = CheckpointRules(every_s=30.0)
LIVES = {0: "server-0.0", 1: "server-1.0"}
OWNERS = {0: "server-0.0", 1: "server-1.0"}
"""Of a job with two slots."""


def progress(samples=10):
    """A note of one pass with this many trained samples."""
    ledger = AsyncLedger(DatasetCard(samples=100, batch_size=10), 0)
    ledger.samples_done = samples
    return JobProgress(ledgers=(ledger.to_state(),))


class Record:
    """A fake of a job's record: two slots are placed, and training has begun. `changes` name fields with dots."""

    def __init__(self, **changes):
        group = SimpleNamespace(in_step=False, members=(), generation=3)
        spec = SimpleNamespace(name="job", slots=2, seed=5)
        phase = SimpleNamespace(over=False)
        self.state = SimpleNamespace(spec=spec, bsp=group, phase=phase, healing=False, saving_last=False)
        self.samples = 10
        self.book = SimpleNamespace(
            waits_to_end=False, era=0, passes=[], next_shard=7, note=lambda: progress(self.samples)
        )
        self.slots = SimpleNamespace(placement="two slots")
        self.span = SimpleNamespace(leased_at=1.0, begun=True)
        self.shared = SimpleNamespace(claims={}, values={SHARED_KEY: b"outline"})
        self.scripts = SimpleNamespace(objects={}, places={})
        for name, value in changes.items():
            *path, last = name.split("__")
            at = self
            for part in path:
                at = getattr(at, part)
            setattr(at, last, value)


def made(tmp_path, **rules):
    return CheckpointStore(dataclasses.replace(RULES, **rules), tmp_path, stores.CLAIM)


def begin(saving, record, at=0.0, **options):
    return saving.begin(record, LIVES, hurry=False, at=at, **options)


def report(saving, rank, *, number=None, part=0, slots=None, **options):
    """A server's report that it wrote its slot."""
    pieces = tuple(SlotExtent(slot, 0, 4, 1) for slot in (slots if slots is not None else [rank]))
    now = saving.round.order
    life = LIVES[rank]
    written = Written(life, f"{life}-{now.number:06d}.run1.seg", 10 + part, pieces)
    options = {"written": written, "part": part, "tables": (stores.TABLE,)} | options
    return life, SaveReport(saving.term, number or now.number, **options)


def complete(saving, record, at=0.0, **options):
    """Run a whole round; return its manifest."""
    begin(saving, record, at, **options)
    saving.on_report(*report(saving, 0), record, OWNERS)
    manifest = saving.on_report(*report(saving, 1), record, OWNERS)
    saving.complete(manifest)
    return manifest


# ---- beginning ----


def test_checkpoint_is_due_again_when_the_interval_has_passed(tmp_path):
    saving, record = made(tmp_path), Record()
    assert saving.due(record, 0.0) == (True, False)
    order = begin(saving, record)
    assert (order.term, order.number, order.base) == (1, 1, 0)
    assert saving.due(record, 99.0) == (False, False), "one is under way"
    saving.round = None
    assert saving.due(record, 29.5) == (False, False) and saving.due(record, 30.0) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots__placement": None},
        {"state__phase__over": True},
        {"state__bsp__in_step": True},
        {"state__healing": True},
        {"span__leased_at": None},
        {"shared__claims": {"weights": LeaseHolder(0)}},
    ],
)
def test_checkpoint_is_not_due_while(tmp_path, changes):
    assert made(tmp_path).due(Record(**changes), 0.0) == (False, False)


def test_job_without_checkpoints_has_none_due(tmp_path):
    saving = made(tmp_path, every_s=0.0)
    assert saving.due(Record(), 0.0) == (False, False)
    assert saving.due_at_step(Record(state__bsp__members=(0,)), 0.0, last=True) == 0


def test_resumed_pass_that_waits_to_end_needs_a_checkpoint_without_a_lease(tmp_path):
    record = Record(book__waits_to_end=True, span__leased_at=None)
    assert made(tmp_path).due(record, 0.0) == (True, True)


@pytest.mark.parametrize("waits", ["book__waits_to_end", "state__saving_last"])
def test_checkpoint_at_the_end_is_hurried_but_not_repeated_at_once_after_a_failure(tmp_path, waits):
    saving, record = made(tmp_path), Record()
    complete(saving, record)
    record = Record(samples=20, **{waits: True})
    assert saving.due(record, 1.0) == (True, True), "the interval has not passed"
    begin(saving, record, 1.0)
    assert saving.abandon("disk full", 1.5) == 2
    assert saving.trouble == "checkpoint 2 was not completed: disk full"
    assert saving.due(record, 3.0) == (False, True) and saving.due(record, 3.5) == (True, True)


def test_last_checkpoint_is_not_repeated(tmp_path):
    saving, record = made(tmp_path), Record()
    complete(saving, record)
    assert saving.due(Record(state__saving_last=True), 99.0) == (False, False)
    assert saving.due(Record(state__saving_last=True, samples=20), 99.0) == (True, True)


@pytest.mark.parametrize(("url", "due"), [("s3://there", (False, False)), ("", (True, True))])
def test_pass_whose_checkpoint_has_only_to_be_uploaded_needs_no_other(tmp_path, url, due):
    saving, record = made(tmp_path, url=url), Record()
    manifest = complete(saving, record)
    saving.last = msgspec.structs.replace(manifest, apart={"": "n0"})
    assert saving.unsure is bool(url)
    assert saving.due(Record(book__waits_to_end=True), 99.0) == due
    assert saving.due(Record(book__waits_to_end=True, samples=20), 99.0) == (True, True)
    assert saving.due(Record(samples=20), 99.0) == (True, False)
    saving.is_stored(manifest)
    assert not saving.unsure and saving.due(Record(book__waits_to_end=True), 99.0) == (True, True)


def test_group_is_asked_for_a_checkpoint_when_the_interval_has_passed(tmp_path):
    saving, record = made(tmp_path), Record(state__bsp__in_step=True, state__bsp__members=(0,))
    assert saving.due_at_step(record, 0.0) == 1
    begin(saving, record, step=4)
    assert (saving.due_at_step(record, 99.0), saving.due_at_step(record, 0.0, last=True)) == (0, 2)
    saving.abandon("lost", 0.0, again=False)
    assert (saving.due_at_step(record, 29.0), saving.due_at_step(record, 30.0)) == (0, 2)


@pytest.mark.parametrize(
    "changes",
    [{"state__phase__over": True}, {"state__healing": True}, {"state__bsp__members": ()}, {"span__begun": False}],
)
def test_group_is_asked_for_no_checkpoint_while(tmp_path, changes):
    record = Record(**{"state__bsp__members": (0,)} | changes)
    assert made(tmp_path).due_at_step(record, 0.0, last=True) == 0


def test_checkpoint_covers_what_was_trained_and_the_states_of_scripts(tmp_path):
    saving, record = made(tmp_path), Record()
    assert not saving.covers(record) and saving.covers(Record(state__bsp__in_step=True))
    complete(saving, record)
    assert saving.covers(Record()) and not saving.covers(Record(samples=11))
    assert not saving.covers(Record(scripts__objects={0: {"schedule": b"late"}}))
    assert not saving.covers(Record(scripts__places={0: EpochPlace(1, 0, 0)}))


def test_trained_samples_are_compared_for_each_pass():
    assert trained(progress(10)) == [(0, 10)]
    flow = SimpleNamespace(base=9, samples_done=4)
    assert trained(SimpleNamespace(ledgers=progress(10).ledgers, flows=(flow,))) == [(0, 10), (9, 4)]


# ---- reports ----


def test_round_is_complete_when_all_slots_are_written(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    assert saving.on_report(*report(saving, 0), record, OWNERS) is None
    manifest = saving.on_report(*report(saving, 1), record, OWNERS)
    assert (manifest.number, manifest.job, manifest.run, manifest.slots, manifest.seed) == (1, "job", "run1", 2, 5)
    assert manifest.outline == b"outline" and manifest.tables == (stores.TABLE,)
    assert manifest.progress.samples == 10 and rounds.note_of(manifest).next_shard == 7
    assert saving.on_report(*report(saving, 1), record, OWNERS) is None, "it is being published"
    assert saving.check_slots(record, OWNERS) is None


def test_reports_of_other_rounds_are_ignored(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    life, other = report(saving, 0, number=9)
    assert saving.on_report(life, other, record, OWNERS) is None
    stale = msgspec.structs.replace(other, number=1, term=7)
    assert saving.on_report(life, stale, record, OWNERS) is None
    assert saving.round.written == [] and not saving.round.answered
    saving.round = None
    assert saving.on_report(life, stale, record, OWNERS) is None


def test_report_of_a_failure_ends_the_round_with_its_reason(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    assert saving.on_report(*report(saving, 0, error="disk full"), record, OWNERS) == "server-0.0: disk full"
    nothing = saving.on_report(*report(saving, 0, written=None), record, OWNERS)
    assert nothing == "server-0.0: the server wrote nothing"
    record.state.bsp.generation += 1
    assert "a new bsp group was formed" in saving.on_report(*report(saving, 0), record, OWNERS)


def test_reports_of_all_servers_are_summed(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    first = report(saving, 0, cpu_s=0.5, lost=("a.seg",), unmirrored="full", slots=[])
    for _ in range(2):  # the second is repeated by the server
        saving.on_report(*first, record, OWNERS)
    saving.on_report(*report(saving, 1, cpu_s=0.25, lost=("b.seg",), unmirrored="slow"), record, OWNERS)
    now = saving.round
    assert len(now.written) == 2 and now.cpu_s == 1.25 and now.lost == ["a.seg", "a.seg", "b.seg"]
    assert now.unmirrored == "server-0.0: full; server-0.0: full; server-1.0: slow"


def test_slots_without_an_image_are_asked_for_when_all_servers_answered(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    saving.on_report(*report(saving, 0, slots=[]), record, OWNERS)
    assert saving.round.order.part == 0, "the other server may have it"
    assert saving.on_report(*report(saving, 1), record, OWNERS) is None
    assert (saving.round.order.part, saving.round.order.slots) == (1, (0,)) and not saving.round.answered
    assert saving.on_report(*report(saving, 1, part=0, slots=[]), record, OWNERS) is None
    assert not saving.round.answered, "that answered the order before"
    assert saving.on_report(*report(saving, 0, part=1), record, OWNERS).number == 1


def test_owner_that_joined_later_is_waited_for(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    owners = {0: "server-2.0", 1: "server-1.0"}
    saving.on_report(*report(saving, 0, slots=[]), record, owners)
    saving.on_report(*report(saving, 1), record, owners)
    assert saving.round.order.part == 0
    saving.on_report("server-2.0", report(saving, 0, slots=[])[1], record, owners)
    assert saving.round.order.part == 1


def test_round_ends_when_slots_keep_changing_servers(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    for part in range(MOST_PARTS):
        for rank in range(2):
            assert saving.on_report(*report(saving, rank, part=part, slots=[]), record, OWNERS) is None
    saving.on_report(*report(saving, 0, part=MOST_PARTS, slots=[]), record, OWNERS)
    why = saving.on_report(*report(saving, 1, part=MOST_PARTS, slots=[]), record, OWNERS)
    assert why == "2 slots keep changing servers, and no server wrote them"


def test_server_that_gave_up_its_slots_is_waited_for_no_more(tmp_path):
    saving, record = made(tmp_path), Record()
    assert not saving.left(frozenset({"server-1.0"}))
    begin(saving, record)
    saving.on_report(*report(saving, 0, slots=[0, 1]), record, {})
    begin(saving, record)
    saving.on_report(*report(saving, 0), record, OWNERS)
    assert not saving.left(frozenset({"server-0.0"})), "it has answered"
    assert saving.left(frozenset({"server-1.0"})) and saving.round.lives == frozenset()
    assert not saving.left(frozenset({"server-1.0"}))


# ---- ends ----


def test_complete_checkpoint_clears_the_trouble_and_says_what_has_no_mirror(tmp_path):
    saving, record = made(tmp_path), Record()
    begin(saving, record)
    saving.abandon("lost", 0.0)
    begin(saving, record)
    saving.on_report(*report(saving, 0, unmirrored="full"), record, OWNERS)
    manifest = saving.on_report(*report(saving, 1), record, OWNERS)
    note = saving.complete(manifest)
    assert note.samples == 10 and saving.round is None and saving.last is manifest and saving.trouble == ""
    assert saving.unmirrored == "checkpoint 2 has no mirror copy: server-0.0: full"
    complete(saving, record)
    assert saving.unmirrored == "" and [kept.number for kept in saving.kept] == [2, 3]
    complete(saving, record)
    assert [kept.number for kept in saving.kept] == [3, 4]
    assert saving.complete(manifest) is None, "no round was under way"


@pytest.mark.parametrize(("every_s", "again", "due_at"), [(30.0, True, 12.0), (1.0, True, 1.0), (30.0, False, 30.0)])
def test_abandoned_round_is_tried_again_soon(tmp_path, every_s, again, due_at):
    saving, record = made(tmp_path, every_s=every_s), Record()
    assert saving.abandon("nothing", 0.0) == 0 and saving.trouble == ""
    begin(saving, record)
    assert saving.abandon("lost", 10.0, again=again) == 1
    assert not saving.due(record, due_at - 0.5)[0] and saving.due(record, due_at)[0]
    assert begin(saving, record).number == 2, "numbers are used once"


def published(saving, record, count):
    """Complete checkpoints and write their manifests."""
    for _ in range(count):
        checkpoint_io.publish(saving.place, complete(saving, record))


def test_rollback_removes_later_checkpoints_and_what_is_stored_of_them(tmp_path):
    saving, record = made(tmp_path, keep=5), Record()
    published(saving, record, 3)
    first, second, third = saving.kept
    begin(saving, record)
    assert saving.is_stored(second).samples == 10 and saving.stored == 2
    saving.go_back(2)
    assert saving.kept == [first, second] and saving.last is second
    saving.go_back(1)
    assert checkpoint_io.numbers(saving.place) == [1] and saving.kept == [first] and saving.last is first
    assert saving.is_stored(third) is None and saving.stored == 2
    assert saving.is_stored(first) is not None and saving.stored == 2, "an earlier one is no news"
    saving.round = None
    fifth = complete(saving, record)
    assert fifth.number == 5 and saving.is_stored(fifth) is not None and saving.stored == 5
    saving.go_back(3)
    assert saving.last is None and saving.kept == [first]


def test_rollback_skips_numbers_of_newer_checkpoints_of_the_folder(tmp_path):
    saving, record = made(tmp_path), Record()
    manifest = complete(saving, record)
    for number, run in ((7, "run1"), (8, "run9")):
        checkpoint_io.publish(saving.place, msgspec.structs.replace(manifest, number=number, run=run))
    (tmp_path / rounds.name_of(9)).write_bytes(b"damaged")
    saving.go_back(1)
    assert checkpoint_io.numbers(saving.place) == [8], "it belongs to another run"
    assert saving.is_stored(msgspec.structs.replace(manifest, number=9)) is None
    assert begin(saving, record).number == 10


def test_master_that_takes_over_goes_on_after_the_highest_number(tmp_path):
    saving, record = made(tmp_path), Record()
    published(saving, record, 2)
    for file in {file.name for kept in saving.kept for file in kept.files}:
        (tmp_path / file).write_bytes(bytes(20))
    assert made(tmp_path).take_over(2, 0) == 0
    (tmp_path / "server-0.0-000004.run1.part").write_bytes(b"")
    second = made(tmp_path)
    assert second.take_over(2, 0) == 4 and [kept.number for kept in second.kept] == [1, 2]
    assert second.last.number == 2 and begin(second, record).number == 5
    third = made(tmp_path, keep=1)
    third.passed(9)
    third.passed(3)
    assert third.take_over(2, 0) == 0 and [kept.number for kept in third.kept] == [2]
    assert begin(third, record).number == 10
    assert made(tmp_path).take_over(1, 3) == 4 and checkpoint_io.numbers(saving.place) == [1], "2 is of another era"


def test_published_checkpoint_leaves_files_of_kept_and_copied_ones(tmp_path):
    saving, record = made(tmp_path, keep=2), Record()
    manifests = []
    for _ in range(4):
        manifest = complete(saving, record)
        saving.kept = saving.kept[:-1]
        for file in manifest.files:
            (tmp_path / file.name).write_bytes(bytes(20))
        saving.publish(manifest, manifests[0] if manifests else None)
        saving.kept = [*saving.kept, manifest]
        manifests.append(manifest)
    assert checkpoint_io.numbers(saving.place) == [4, 3, 1]
    (tmp_path / "server-0.0-000005.run1.seg").write_bytes(b"")
    saving.drop(5, saving.kept)
    assert checkpoint_io.numbers(saving.place) == [4, 3]
    assert not (tmp_path / "server-0.0-000005.run1.seg").exists()


def test_master_that_takes_over_before_the_first_checkpoint_skips_numbers_at_the_url(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    manifest = complete(made(tmp_path), Record())
    checkpoint_io.publish(FolderStore(there), msgspec.structs.replace(manifest, number=9))
    rules = CheckpointRules(every_s=30.0, url=f"file://{there}")
    for saved, number in ((0, 10), (3, 4)):
        second = CheckpointStore(rules, tmp_path / f"run-{saved}", stores.CLAIM)
        second.take_over(saved, 0)
        assert begin(second, Record()).number == number


def test_run_without_a_checkpoint_leaves_its_folder_and_url_to_others(tmp_path):
    saving = CheckpointStore(CheckpointRules(every_s=30.0, url=f"file://{tmp_path}/there"), tmp_path, stores.CLAIM)
    saving.begin_run()
    places = (saving.place, UrlStore(saving.rules.url))
    assert [claims.all_of(place)[1].run for place in places] == [stores.RUN] * 2
    saving.end_run()
    assert [claims.all_of(place) for place in places] == [{}, {}]
