"""Runs checkpoint rounds on the master: begins a round, collects the servers' reports, and publishes the manifest.

A round records the state of the ledger, the *note*, before any slot is copied. A master that takes over finds
complete checkpoints in the folder, abandons a round in progress and begins another. Next:
`master.checkpoint.schedule` applies the result to the job.
"""

import logging
import pathlib
import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from springtide import errors
from springtide.checkpoint.format import checkpoint_io, manifest
from springtide.checkpoint.format.manifest import Manifest, SavedProgress, ScriptStates, name_of, number_in
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.data.ledger import passes
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.samples import EpochPlace
from springtide.domain.model.checkpoints import CheckpointRules, Lineage, Written
from springtide.domain.model.tables import SHARED_KEY, TableSpec
from springtide.master.core.record import DONE, JobRecord
from springtide.rpc.messages.checkpoints import SaveOrder, SaveReport

log = logging.getLogger(__name__)

MOST_PARTS = 20  # most orders in a round; slots that are still moving after that wait for the next checkpoint
AGAIN_S = (
    # seconds until the next attempt after a failed or abandoned round, but at most the interval between checkpoints
    2.0
)

AT_START = {-1: EpochPlace(epoch=0, first=0, begun=0)}
"""Places of scripts that begin with saved objects. No rank has begun its script, so the place has no real rank."""


class CheckpointRound(msgspec.Struct):
    """One checkpoint under way."""

    order: SaveOrder
    note: JobProgress
    scripts: ScriptStates
    begun_at: float
    lives: frozenset[str]
    step: int = 0
    """Step after which the bsp group waits; 0 without a bsp group."""
    generation: int = 0
    """Generation of the waiting bsp group. A later generation may have continued training."""
    era: int = 0
    """Era of the ledger when the note was taken. After a rollback, slots may lack samples that this note counts as
    trained.
    """
    written: list[Written] = msgspec.field(default_factory=list)
    answered: set[str] = msgspec.field(default_factory=set)
    """Servers that have written everything that the newest order requests."""
    tables: dict[int, TableSpec] = msgspec.field(default_factory=dict)
    cpu_s: float = 0.0
    unmirrored: str = ""
    """Reason why some files have only one copy, although the job mirrors files."""
    lost: list[str] = msgspec.field(default_factory=list)
    publishing: bool = False

    def manifest(self, record: JobRecord, covered: manifest.Covered, run: str) -> Manifest:
        spec, note = record.state.spec, passes.caught_up(self.note, record.book.passes)
        note = replace(note, next_shard=record.book.next_shard)
        return Manifest(
            job=spec.name,
            run=run,
            number=self.order.number,
            begun_at=self.begun_at,
            completed_at=time.time(),
            slots=spec.slots,
            seed=spec.seed,
            progress=SavedProgress(
                samples=note.samples,
                samples_before=note.samples_before,
                step=self.step,
                era=self.era,
                ledger=msgspec.msgpack.encode(note),
            ),
            scripts=self.scripts,
            tables=tuple(spec for _, spec in sorted(self.tables.items())),
            outline=record.shared.values.get(SHARED_KEY, b""),
            files=covered.files,
            chains=covered.chains,
            apart=covered.apart,
        )


class CheckpointStore:
    """Checkpoints of one job. Only `publish` may run outside of the master's event loop."""

    def __init__(self, rules: CheckpointRules, folder: pathlib.Path, claim: RunClaim, *, term: int = 1) -> None:
        """`claim` is this run's claim of the folder and the URL."""
        self.rules, self.place, self.term = rules, FolderStore(folder), term
        # a run with new data leaves the places of the other run to that run
        self.claim = claim if rules.new_data else msgspec.structs.replace(claim, resumed_run=rules.resume_run)
        self.claim_name = ""
        """File name of this run's claim in the folder; empty if the run could not write a claim."""
        self.round: CheckpointRound | None = None
        self.last: Manifest | None = None
        self.kept: list[Manifest] = []
        self.trouble = ""
        self.unmirrored = ""
        """Why the last complete checkpoint has only one copy, in a job with mirrors."""
        self.stored = 0
        self._void: set[int] = set()
        """Numbers of checkpoints that a rollback made invalid: their notes count samples as trained that slots lack."""
        self._number = rules.numbers_after
        self._next_at = float("-inf")

    @property
    def folder(self) -> pathlib.Path:
        return self.place.path

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.claim.run, self.rules.resume_run, self.rules.resume_number)

    def begin_run(self) -> None:
        """Claim the folder and the URL of a new run. If another run owns the folder or the URL, raise BadInput with the
        name of that run.

        If the folder or the URL is not writable, the job begins anyway, and the next save reports the error.
        """
        if not self.rules.on:
            return
        taken = [0]
        try:
            self._claim_folder()
            taken += checkpoint_io.numbers(self.place)
            self._keep_found()
        except errors.BadInput:
            raise
        except OSError as error:
            log.warning("%s cannot be claimed: %s", self.folder, error)
        try:
            if self.rules.url:
                claims.take(UrlStore(self.rules.url), self.claim, option="--checkpoint-url")
        except errors.BadInput:
            self.end_run()
            raise
        except OSError as error:
            log.warning("%s cannot be claimed: %s", self.rules.url, error)
        self._number = max(self._number, *taken, *self._numbers_at_url())

    def end_run(self) -> None:
        """Release the places in which the run left no checkpoint. Waits for the store."""
        if not self.rules.on:
            return
        places: list[FolderStore | UrlStore] = [self.place]
        for place in [*places, *([UrlStore(self.rules.url)] if self.rules.url else [])]:
            try:
                claims.release(place, self.lineage.run)
            except (errors.SpringtideError, OSError) as error:
                log.warning("the claim in %s could not be released: %s", place.where, error)

    def take_over(self, saved: int, era: int) -> int:
        """Find complete checkpoints of this run. Return the number of an incomplete checkpoint, or 0.

        `saved` is the number of the last checkpoint in the previous master's journal. A later checkpoint counts only if
        it began in the ledger's present era. The note of a checkpoint from an earlier era counts samples as trained
        that restored slots lack.
        """
        try:
            self._claim_folder()
        except (errors.BadInput, OSError) as error:  # ignore the error, because the next publication will report it
            log.warning("%s", error)
        self._keep_found(saved, era)
        self._number = max(self._number, saved, *([] if saved else self._numbers_at_url()))
        if self.kept and self.kept[-1].run == self.lineage.run:
            self._complete(self.kept[-1])
        taken = [number_in(name.replace(".part", ".seg")) or 0 for name in self.place.names()]
        self._number = max([(before := self._number), *taken])
        return self._number if self._number > before else 0

    def _claim_folder(self) -> None:
        if self.rules.on:
            self.claim_name = claims.take(self.place, self.claim)

    def _numbers_at_url(self) -> list[int]:
        """Return the numbers of the checkpoints that an earlier run left at the URL. This run continues the numbering
        after the highest of these numbers.
        """
        try:
            return checkpoint_io.numbers(UrlStore(self.rules.url)) if self.rules.url else []
        except OSError as error:
            log.warning("%s", error)
            return []

    def _keep_found(self, saved: int = 0, era: int = 0) -> None:
        for number in checkpoint_io.numbers(self.place):
            try:
                found = checkpoint_io.known(self.place, number, lineage=self.lineage)
                if found.run == self.lineage.run and number > saved and found.progress.era != era:
                    self.withdraw(found)
                elif len(self.kept) < self.rules.keep:
                    self.kept.insert(0, found)
            except (errors.BadInput, OSError) as error:
                log.warning("checkpoint %d: %s", number, error)

    def passed(self, number: int) -> None:
        self._number = max(self._number, number)

    @property
    def unsure(self) -> bool:
        """Return True if, until the upload of the last complete checkpoint is done, the loss of a host could destroy
        this checkpoint."""
        last = self.last
        return bool(self.rules.url) and last is not None and last.number > self.stored and not last.outlasts_a_host

    # ---- beginning ----

    def due(self, record: JobRecord, at: float) -> tuple[bool, bool]:
        state, book = record.state, record.book
        if not self.rules.on or self.round is not None or record.slots.placement is None or state.phase.over:
            return False, False
        # a resumed pass over a stream may have no lease because it is at its end; it then ends after a checkpoint
        if state.bsp.in_step or state.healing or (record.span.leased_at is None and not book.waits_to_end):
            return False, False
        if state.saving_last and self.covers(record):
            return False, False
        if book.waits_to_end and self.unsure and self.covers(record):
            return False, False  # begin no round, because the checkpoint only needs to be uploaded
        if book.waits_to_end or state.saving_last:
            return at >= self._next_at or not self.trouble, True
        assigned = all(holder == DONE for holder in record.shared.claims.values())
        return assigned and at >= self._next_at, False

    def hasten(self, at: float) -> None:
        self._next_at = min(self._next_at, at)

    def due_at_step(self, record: JobRecord, at: float, *, last: bool = False) -> int:
        """Return the number of the checkpoint that a bsp group should begin after its next step; 0 if none is due."""
        state = record.state
        if not self.rules.on or state.phase.over or state.healing or not state.bsp.members or not record.span.begun:
            return 0
        return self._number + 1 if last or (self.round is None and at >= self._next_at) else 0

    def begin(
        self,
        record: JobRecord,
        lives: Mapping[int, str],
        *,
        hurry: bool,
        at: float,
        note: JobProgress | None = None,
        step: int = 0,
    ) -> SaveOrder:
        """Take the note of the ledger and begin a round. Everything that servers copy from now on belongs to this
        round."""
        self._number += 1
        base = self.last.number if self.last is not None else 0
        order = SaveOrder(self.term, self._number, base, hurry)
        self.round = CheckpointRound(
            order,
            note or record.book.note(),
            ScriptStates(
                claims=tuple(record.shared.claims), objects=record.scripts.objects, places=record.scripts.places
            ),
            time.time(),
            frozenset(lives.values()),
            step,
            record.state.bsp.generation,
            record.book.era,
        )
        self._next_at = at + self.rules.every_s
        return order

    def covers(self, record: JobRecord) -> bool:
        """Return True if no sample was trained and no script state changed since the last complete checkpoint began.

        A bsp group makes its final checkpoint itself.
        """
        if record.state.bsp.in_step:
            return True
        if self.last is None:
            return False
        scripts = (self.last.scripts.objects, self.last.scripts.places) == (
            record.scripts.objects,
            record.scripts.places,
        )
        return scripts and trained(note_of(self.last)) == trained(record.book.note())

    # ---- ending ----

    def on_report(
        self, life: str, report: SaveReport, record: JobRecord, owners: Mapping[int, str]
    ) -> Manifest | str | None:
        now = self.round
        if now is None or now.publishing or (report.term, report.number) != (now.order.term, now.order.number):
            return None
        if report.error or report.written is None:
            return f"{life}: {report.error or 'the server wrote nothing'}"
        if record.state.bsp.generation != now.generation:
            return "a new bsp group was formed during the checkpoint, and may have trained further"
        if report.written not in now.written:
            now.written.append(report.written)
        if report.part == now.order.part:
            now.answered.add(life)
        now.tables |= {spec.id: spec for spec in report.tables}
        now.cpu_s += report.cpu_s
        now.lost += report.lost
        if report.unmirrored:
            now.unmirrored = "; ".join(filter(None, (now.unmirrored, f"{life}: {report.unmirrored}")))
        return self.check_slots(record, owners)

    def check_slots(self, record: JobRecord, owners: Mapping[int, str]) -> Manifest | str | None:
        """Check whether every slot is written. If slots have moved since the order, order their present owners to save
        them. If slots were moving, order the present owners of these slots to save them.

        The result is consistent, because the ledger's note is older than every slot image.
        """
        now = self.round
        if now is None or now.publishing:
            return None
        covered = manifest.cover(record.state.spec.slots, self.last, now.written, owners)
        if not covered.missing:
            now.publishing = True
            return now.manifest(record, covered, self.lineage.run)
        if not (now.lives <= now.answered and set(owners.values()) <= now.answered):
            return None
        if now.order.part >= MOST_PARTS:
            return f"{len(covered.missing)} slots keep changing servers, and no server wrote them"
        part = now.order.part + 1
        now.order = msgspec.structs.replace(now.order, part=part, slots=covered.missing)
        now.answered = set()
        return None

    def left(self, lives: frozenset[str]) -> bool:
        """Stop waiting for servers that left after they gave up their last slot. Return True if the round waited
        for one of these servers."""
        now = self.round
        waited = now is not None and bool(now.lives & lives - now.answered)
        if now is not None:
            now.lives -= lives
        return waited

    def publish(self, manifest: Manifest, copied: Manifest | None) -> None:
        """Write the manifest and delete files that are no longer needed. Blocks on the disk, so call it in a thread.

        The files of a checkpoint stay while the checkpoint is being copied elsewhere. Raises BadInput if another run
        has taken over the folder.
        """
        self._claim_folder()
        checkpoint_io.publish(self.place, manifest)
        keep = [*self.kept, manifest][-self.rules.keep :]
        checkpoint_io.drop_unneeded(self.place, [*keep, *([copied] if copied else [])])

    def drop(self, number: int, kept: list[Manifest]) -> None:
        """Delete the remaining files of an abandoned checkpoint. Blocks on the disk."""
        try:
            self._claim_folder()
            only_run = ""
        except errors.BadInput:  # another run has taken over the folder
            only_run = self.lineage.run
        checkpoint_io.drop_unneeded(self.place, kept, given_up=number, only_run=only_run)

    def complete(self, manifest: Manifest) -> JobProgress | None:
        self.kept = [*self.kept, manifest][-self.rules.keep :]
        now, self.round = self.round, None
        self._complete(manifest)
        lacks = now.unmirrored if now is not None else ""
        self.unmirrored = f"checkpoint {manifest.number} has no mirror copy: {lacks}" if lacks else ""
        return now.note if now is not None else None

    def withdraw(self, manifest: Manifest) -> None:
        """Remove a checkpoint that was abandoned during its publication, so that no reader finds it."""
        self._remove(manifest.number)

    def abandon(self, why: str, at: float, *, again: bool = True) -> int:
        now, self.round = self.round, None
        if now is None:
            return 0
        self.trouble = f"checkpoint {now.order.number} was not completed: {why}"
        if again:
            self._next_at = min(self._next_at, at + min(AGAIN_S, self.rules.every_s))
        return now.order.number

    def go_back(self, number: int) -> None:
        for newer in [found for found in checkpoint_io.numbers(self.place) if found > number]:
            self._number = max(self._number, newer)
            self._remove(newer)
        self._void |= set(range(number + 1, self._number + 1))
        self.kept = [manifest for manifest in self.kept if manifest.number <= number]
        self.last = self.kept[-1] if self.kept and self.kept[-1].number == number else None

    def _remove(self, number: int) -> None:
        try:
            run = checkpoint_io.manifest_of(self.place, number).run
        except errors.OtherVersion:
            return
        except (errors.BadInput, OSError):  # damaged or deleted
            run = self.lineage.run
        if run == self.lineage.run:
            self.place.remove(name_of(number))

    def _complete(self, manifest: Manifest) -> None:
        self.last, self.trouble = manifest, ""
        self._number = max(self._number, manifest.number)

    def is_stored(self, manifest: Manifest) -> JobProgress | None:
        """Record that a checkpoint is at the URL, where it survives the loss of a host. Return the checkpoint's note
        of the ledger.

        Return None if a rollback during the upload made this checkpoint invalid.
        """
        if manifest.number in self._void:
            return None
        self.stored = max(self.stored, manifest.number)
        return note_of(manifest)


def note_of(manifest: Manifest) -> JobProgress:
    return msgspec.msgpack.decode(manifest.progress.ledger, type=JobProgress)


def scripts_of(manifest: Manifest, rules: CheckpointRules) -> ScriptStates:
    """Return the script states for a job that goes on from this checkpoint. If the checkpoint belongs to another run
    and the job has new data, scripts begin at their start, with their saved objects. Scripts also assign first weights,
    but slots take them for new tables only."""
    scripts = manifest.scripts
    if not rules.new_data or manifest.run != rules.resume_run:
        return scripts
    return msgspec.structs.replace(scripts, claims=(), places=AT_START)


def trained(note: JobProgress) -> list[tuple[int, int]]:
    shards = [(state.base, state.samples_done) for state in note.ledgers]
    return shards + [(state.base, state.samples_done) for state in note.flows]
