"""Pure. All passes of a job, and who may speak: the one door to the ledgers.

In: requests of workers as `master.desk` gets them, and what `job` decides (fence, resize, wish). Out: grants, verdicts.
Every method that changes something is named in `CALLS` and depends on its arguments alone. `changes` says whether a
call has changed more than a deadline: the (name, arguments) of those that did, replayed on an empty book, give the same
book (a call that raised raises again), and so does `from_state(to_state())`. After either, `renew` the leases.

When a server is lost the book goes back (`restore`, data/returning.py) to what a checkpoint has noted (`note`). That
begins a new *era*: leases of the one before are over, and words on them change nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from springtide.data import returning
from springtide.data.ledger import STRANGER, Lease, Ledger, LedgerState
from springtide.data.lockstep import Lockstep, LockstepState
from springtide.domain.leases import (
    Failure,
    Grant,
    Holder,
    LeaseKey,
    Nothing,
    Poisoned,
    Progress,
    Totals,
    Verdict,
    Wish,
)
from springtide.domain.samples import DatasetCard, check_same

CALLS = (
    "lease", "report", "end", "fail", "fence", "take_back", "resize", "wish", "expect", "halt", "regroup", "close",
    "restore", "keep", "resume",
)  # fmt: skip
MOST_GRANTS = 16  # of one call: a reply stays small, and no caller runs away with the data
LEASE_S = 30.0  # a lease that its holder has not named for so long goes back: the answer that granted it was lost
HALVINGS = 2  # full, half and quarter size


@dataclass(frozen=True, slots=True, kw_only=True)
class BookNote:
    """How far the job was when a checkpoint began: every batch before that is in every slot of the checkpoint."""

    ledgers: tuple[LedgerState, ...] = ()
    locksteps: tuple[LockstepState, ...] = ()
    """Of a bsp group: exactly so far, at one step."""

    @property
    def samples(self) -> int:
        """Samples that were trained."""
        return sum(one.samples_done for one in self.ledgers) + sum(one.first for one in self.locksteps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookState:
    """A book as plain data."""

    workers: int
    lease_s: float
    max_failures: int
    closed: bool
    ledgers: tuple[LedgerState, ...]
    locksteps: tuple[LockstepState, ...]
    shown: dict[int, int]
    living: dict[int, int]
    fenced: dict[int, int]
    halvings: dict[int, int]
    trained: dict[int, int]
    saves: bool = False
    era: int = 0
    kept: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    halted: bool = False


@dataclass(slots=True)
class Book:
    """A worker opens the next pass by showing its card; all must show the same cards in turn."""

    workers: int
    """How many workers share what is left: no call gets more than half of a fair part."""
    lease_s: float = LEASE_S
    max_failures: int = 3
    passes: list[Ledger | Lockstep] = field(default_factory=list)
    shown: dict[int, int] = field(default_factory=dict)
    """Passes that a rank has opened, so that its next card can be compared with the others'."""
    living: dict[int, int] = field(default_factory=dict)
    """Highest incarnation of each rank that has spoken."""
    fenced: dict[int, int] = field(default_factory=dict)
    """Incarnations up to which a rank's words change nothing."""
    halvings: dict[int, int] = field(default_factory=dict)
    """How often the leases of a slow rank are halved."""
    trained: dict[int, int] = field(default_factory=dict)
    """Samples that each rank has trained, all incarnations together: what its pace is measured by."""
    closed: bool = False
    saves: bool = False
    """Whether the job keeps checkpoints: then a pass ends only when one is complete in which it is trained."""
    era: int = 0
    """How often the book has gone back."""
    kept: set[int] = field(default_factory=set)
    """Passes, by the number of their first shard, that a complete checkpoint has as trained."""
    group: tuple[int, ...] = ()
    """Ranks of the bsp group, once it is formed; any, ascending. Its passes go by their seats in it, from 0 on."""
    halted: bool = False
    """The bsp group is to change before the next shard."""
    changes: int = 0
    """Raised by whatever changes more than a deadline: a call that raised it is worth a line in a journal."""

    # ---- words of workers ----

    def lease(
        self,
        holder: Holder,
        card: DatasetCard,
        most: int,
        at: float,
        known: Collection[LeaseKey] | None = None,
        era: int | None = None,
    ) -> tuple[Grant, ...] | Nothing:
        """Up to `most` leases of the pass that this card stands for, or why there is none.

        `known` are all leases that the holder knows it has. Others of its own are granted again: so a request whose
        answer was lost can be repeated. What it knows of another era than this one is nothing.
        """
        if not self._speaks(holder):
            return Nothing.FENCED
        ledger = self.passes[self._pass_of(holder.rank, card)]
        if isinstance(ledger, Lockstep):
            self.changes += 1
            return ledger.lease(self._seat(holder.rank), holder.rank)
        if known is not None and era not in (None, self.era):
            known = ()
        if known is not None and (again := ledger.again(holder, known)):
            return again
        batches, fair = card.shard_batches >> self.halvings.get(holder.rank, 0), ledger.todo.samples
        if self.workers > 1:
            fair //= 2 * self.workers
            batches = min(batches, 1 << (fair // card.batch_size).bit_length() >> 1)
        size, deadline = max(1, batches) * card.batch_size, at + self.lease_s
        answer = ledger.lease(holder, most=min(most, MOST_GRANTS), size=size, budget=fair, deadline=deadline)
        self.changes += not isinstance(answer, Nothing)
        return Nothing.WAIT if answer is Nothing.END and self._may_return(ledger) else answer

    def report(self, holder: Holder, words: Sequence[Progress], at: float, era: int | None = None) -> Verdict:
        """What a holder says of its leases; those it names are its own for another while."""
        if not self._speaks(holder):
            return Verdict(fenced=True)
        if era not in (None, self.era):
            return Verdict(tuple(LeaseKey(word.shard, word.first) for word in words))
        revoked: list[LeaseKey] = []
        samples, freed = 0, False
        for word in words:
            ledger = self._of_shard(word.shard)
            if isinstance(ledger, Lockstep):
                freed |= ledger.report(self._seat(holder.rank), word)
                continue
            effect = ledger.report(holder, word, at + self.lease_s) if ledger else STRANGER
            samples += effect.samples
            freed |= effect.freed
            if not effect.held and word.offset < word.end:
                revoked.append(LeaseKey(word.shard, word.first))
        if samples:
            self.trained[holder.rank] = self.trained.get(holder.rank, 0) + samples
        wishes = tuple(wish for ledger in self._ledgers() for wish in ledger.wishes(holder.rank))
        self.changes += freed or samples > 0
        return Verdict(tuple(revoked), wishes, freed=freed)

    def end(self, holder: Holder, card: DatasetCard, samples: int) -> bool:
        """A holder has found the end of a data set without a length: an epoch has so many samples. The first counts."""
        if not self._speaks(holder):
            return False
        ledger = self.passes[self._pass_of(holder.rank, card)]
        ended = isinstance(ledger, Ledger) and ledger.end_at(samples)
        self.changes += ended
        return ended

    def fail(self, holder: Holder, failure: Failure) -> bool:
        """A holder cannot read part of its lease. False: it is not its lease, so nothing has changed."""
        ledger = self._of_shard(failure.shard)
        failed = isinstance(ledger, Ledger) and ledger.fail(holder, failure)
        self.changes += failed
        return failed

    # ---- what is decided about them ----

    def fence(self, rank: int, incarnation: int) -> int:
        """This incarnation (and those before) are given up: leases go back, later words change nothing. How many."""
        if incarnation <= self.fenced.get(rank, -1):
            return 0
        self.changes += 1
        self.fenced[rank] = incarnation
        return self._give_up(rank, incarnation)

    def expired(self, at: float) -> tuple[LeaseKey, ...]:
        """Leases whose deadline has passed; `take_back` them. Changes nothing."""
        return tuple(key for ledger in self._ledgers() for key, lease in ledger.leases.items() if lease.deadline < at)

    def take_back(self, keys: Sequence[LeaseKey]) -> int:
        """These leases end: what is left of each goes to others; their holders hear of it. How many there were."""
        count = 0
        for key in keys:
            ledger = self._of_shard(key[0])
            if isinstance(ledger, Ledger):
                count += ledger.take_back([LeaseKey(*key)])
        self.changes += count
        return count

    def resize(self, rank: int, halvings: int) -> None:
        """From now on this rank's leases have full size (0), half (1) or a quarter (2)."""
        self.halvings[rank] = min(HALVINGS, max(0, halvings))
        self.changes += 1

    def wish(self, wish: Wish) -> bool:
        """Ask the holder of a lease to end it sooner; it hears with its next report. False: nothing to ask for."""
        ledger = self._of_shard(wish.shard)
        wished = isinstance(ledger, Ledger) and ledger.wish(wish)
        self.changes += wished
        return wished

    def expect(self, workers: int) -> None:
        """So many workers share what is left."""
        self.workers = max(1, workers)
        self.changes += 1

    def halt(self) -> None:
        """Ranks of the bsp group come to a halt before the first shard that none of them has begun."""
        self.halted = True
        self.changes += 1
        for lockstep in self._locksteps():
            lockstep.halt()

    def regroup(self, ranks: Sequence[int]) -> None:
        """The bsp group has these ranks from now on."""
        seats = [self._seat(rank) for rank in ranks]
        self.halted, self.group = False, tuple(ranks)
        self.changes += 1
        for lockstep in self._locksteps():
            lockstep.regroup(seats)

    def check_group(self, workers: int) -> None:
        """BadInput where a batch of some pass could not be shared by so many ranks."""
        for lockstep in self._locksteps():
            lockstep.check_group(workers)

    def close(self) -> None:
        """The job is to stop: what is leased may be finished, nothing more is handed out."""
        self.closed = True
        self.changes += 1
        for ledger in self.passes:
            ledger.close()

    def restore(self, note: BookNote) -> int:
        """Slots were restored from the checkpoint of this note: all leases end, and what it does not have trained is
        to be trained again. How many samples that are.
        """
        before = self.samples_done
        self.passes = returning.passes_back_to(self.passes, note.ledgers, note.locksteps)
        self.kept = {ledger.base for ledger in self._ledgers() if ledger.base in self.kept and ledger.over}
        self.era += 1
        self.changes += 1
        return before - self.samples_done

    def keep(self, note: BookNote) -> None:
        """A checkpoint that began with this note is complete: nothing that it has as trained can come back."""
        done = {state.base for state in note.ledgers if Ledger.from_state(state, self.max_failures).over}
        self.changes += not done <= self.kept
        self.kept |= done

    def resume(self, note: BookNote) -> None:
        """Another run's checkpoint began with this note: what it has trained stays trained, nobody holds the rest."""
        self.passes = returning.passes_anew(note.ledgers, note.locksteps, self.max_failures, self.workers)
        self.kept = {ledger.base for ledger in self._ledgers() if ledger.over}
        self.changes += 1

    def renew(self, at: float) -> None:
        """All leases hold for another while: a new master gives everyone time to call in."""
        for ledger in self._ledgers():
            for lease in ledger.leases.values():
                lease.deadline = at + self.lease_s

    # ---- what there is to know ----

    def note(self, shard: int = 0, first: int = 0) -> BookNote:
        """How far the job is: to be taken before a checkpoint copies its first slot. A bsp group is at that sample."""
        return BookNote(
            ledgers=tuple(ledger.to_state() for ledger in self._ledgers()),
            locksteps=tuple(lockstep.note(shard, first) for lockstep in self._locksteps()),
        )

    @property
    def waits_to_end(self) -> bool:
        """Whether a pass is trained and only a checkpoint is missing for its end to be told."""
        return any(ledger.over and self._may_return(ledger) for ledger in self._ledgers())

    def totals(self) -> Totals:
        """Shards of all passes so far, by state."""
        return sum((ledger.totals() for ledger in self.passes), Totals())

    def poisoned(self) -> tuple[Poisoned, ...]:
        """What was given up, with the errors."""
        return tuple(each for ledger in self._ledgers() for each in ledger.poisoned)

    def leases(self) -> tuple[tuple[DatasetCard, LeaseKey, Lease], ...]:
        """All live leases with the data set they are of: what the balance at the tail is decided by."""
        return tuple((ledger.card, key, lease) for ledger in self._ledgers() for key, lease in ledger.leases.items())

    @property
    def samples_done(self) -> int:
        """Samples that are trained, of all passes so far."""
        return sum(ledger.samples_done for ledger in self.passes)

    @property
    def hopeless(self) -> bool:
        """Nothing could be trained yet, and reading has failed time and again: no bad shard, but a mistake."""
        return not self.samples_done and sum(sum(one.failures.values()) for one in self._ledgers()) >= self.max_failures

    @property
    def todo_samples(self) -> int:
        """Samples that nobody holds."""
        return sum(ledger.todo.samples for ledger in self._ledgers())

    @property
    def came_back(self) -> bool:
        """Whether leases that others had begun wait to be handed out again."""
        return any(ledger.todo.returned for ledger in self._ledgers())

    @property
    def in_step(self) -> bool:
        """Whether the workers go through the data together."""
        return any(ledger.card.in_step for ledger in self.passes)

    @property
    def epochs(self) -> int:
        """Epochs of all passes so far."""
        return sum(ledger.card.epochs for ledger in self.passes)

    def check(self) -> None:
        """Every invariant; tests call it after each step."""
        for ledger in self.passes:
            ledger.check()
        for ledger in self._ledgers():
            for lease in ledger.leases.values():
                rank, incarnation = lease.holder
                assert self.living[rank] == incarnation, f"{lease.holder} holds a lease, but is not the living one"
                assert incarnation > self.fenced.get(rank, -1), f"{lease.holder} is fenced and holds a lease"

    def to_state(self) -> BookState:
        """Everything, as plain data."""
        return BookState(
            workers=self.workers,
            lease_s=self.lease_s,
            max_failures=self.max_failures,
            closed=self.closed,
            ledgers=tuple(ledger.to_state() for ledger in self._ledgers()),
            locksteps=tuple(ledger.to_state() for ledger in self.passes if isinstance(ledger, Lockstep)),
            shown=dict(self.shown),
            living=dict(self.living),
            fenced=dict(self.fenced),
            halvings=dict(self.halvings),
            trained=dict(self.trained),
            saves=self.saves,
            era=self.era,
            kept=tuple(sorted(self.kept)),
            group=self.group,
            halted=self.halted,
        )

    @staticmethod
    def from_state(state: BookState) -> "Book":
        """A book that goes on where that one was."""
        passes: list[Ledger | Lockstep] = [Ledger.from_state(one, state.max_failures) for one in state.ledgers]
        passes += [Lockstep.from_state(one) for one in state.locksteps]
        passes.sort(key=lambda ledger: ledger.base)
        return Book(
            state.workers, state.lease_s, state.max_failures, passes, dict(state.shown), dict(state.living),
            dict(state.fenced), dict(state.halvings), dict(state.trained), state.closed, state.saves, state.era,
            set(state.kept), state.group, state.halted,
        )  # fmt: skip

    # ---- inside ----

    def _ledgers(self) -> list[Ledger]:
        return [ledger for ledger in self.passes if isinstance(ledger, Ledger)]

    def _may_return(self, ledger: Ledger) -> bool:
        """Whether the loss of a server could bring work of this pass back: somebody must be left to do it then."""
        return self.saves and not ledger.closed and ledger.base not in self.kept

    def _locksteps(self) -> list[Lockstep]:
        return [ledger for ledger in self.passes if isinstance(ledger, Lockstep)]

    def _seat(self, rank: int) -> int | None:
        """Where the rank sits in the bsp group; before one is formed, in the order of ranks."""
        return rank if not self.group else self.group.index(rank) if rank in self.group else None

    def _speaks(self, holder: Holder) -> bool:
        """Whether the holder's words count; a new life of a rank ends the one before."""
        rank, incarnation = holder
        living = self.living.get(rank, -1)
        if incarnation <= self.fenced.get(rank, -1) or incarnation < living:
            return False
        if incarnation > living:
            self._give_up(rank, living)
            self.changes += 1
            self.living[rank] = incarnation
            self.shown.pop(rank, None)
            for lockstep in self._locksteps():
                lockstep.rejoin(self._seat(rank))
        return True

    def _give_up(self, rank: int, incarnation: int) -> int:
        count = 0
        for ledger in self._ledgers():
            held = ledger.held.get(rank, {})
            count += ledger.take_back([key for key, lease in held.items() if lease.holder.incarnation <= incarnation])
        return count

    def _of_shard(self, shard: int) -> Ledger | Lockstep | None:
        for ledger in reversed(self.passes):
            if ledger.base <= shard < ledger.base + ledger.numbers:
                return ledger
        return None

    def _pass_of(self, rank: int, card: DatasetCard) -> int:
        shown = self.shown.get(rank, 0)
        for turn in reversed(range(shown)):
            if self.passes[turn].card == card:
                return turn
        self._open(rank, card, turn=shown)
        self.shown[rank] = shown + 1
        self.changes += 1
        return shown

    def _open(self, rank: int, card: DatasetCard, *, turn: int) -> None:
        if turn < len(self.passes):
            check_same(rank, card, self.passes[turn].card)
            return
        base = self.passes[-1].base + self.passes[-1].numbers if self.passes else 0
        opened = (
            Lockstep(card, base, len(self.group) or self.workers)
            if card.in_step
            else Ledger(card, base, self.max_failures)
        )
        self.passes.append(opened)
        if self.halted and isinstance(opened, Lockstep):
            opened.halt()
        if self.closed:
            opened.close()
