"""Pure. Manages all passes of a job over its data: grants leases, applies reports, rolls back to a checkpoint.

Every changing method depends only on its arguments. `changes` increases when a call changes more than a deadline. To
rebuild the ledger, replay these calls on an empty ledger, or use `from_state`; then call `renew`. A call that raised an
error raises the same error in a replay. A rollback (`restore`) begins a new *era*: reports on leases of an earlier era
change nothing.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from springtide.data.ledger import bsp_ledger, passes, stream_ledger
from springtide.data.ledger.async_ledger import NOT_HELD, AsyncLedger, AsyncLedgerState
from springtide.data.ledger.bsp_ledger import BspLedger, BspStreamLedger, OffsetRange
from springtide.data.ledger.passes import GroupSeats, HolderRegistry, JobProgress, LedgerOrigin, Passes, PassLedger
from springtide.data.ledger.stream_ledger import StreamLedger, StreamLedgerState
from springtide.domain.data.leases import (
    Grant,
    LeaseHolder,
    LeaseKey,
    LedgerReply,
    NoLease,
    Progress,
    ReadFailure,
    ShrinkRequest,
)
from springtide.domain.data.samples import DatasetCard, check_same, refuse_other_mode
from springtide.domain.data.streams import BatchCut, PartitionRange

MOST_GRANTS = 16  # most leases per call, so that replies stay small and no worker gets all data
# seconds until an unacknowledged lease is revoked: no report or request of its holder names the lease, so the reply
# with the lease was lost
LEASE_S = 30.0
HALVINGS = 2  # how many times a rank's lease size may be halved: full, half, quarter


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLedgerState:
    """A job's ledger as plain data, for snapshots of the journal."""

    lease_s: float
    closed: bool
    ledgers: tuple[AsyncLedgerState, ...]
    locksteps: tuple[BspLedger, ...]
    flows: tuple[StreamLedgerState, ...]
    opened: dict[int, int]
    holders: HolderRegistry
    group: GroupSeats
    saves: bool = False
    keeps: int = 2
    kept: tuple[int, ...] = ()
    era: int = 0
    origin: LedgerOrigin = LedgerOrigin()  # noqa: RUF009


class JobLedger(Passes):
    """Ledger of all passes. A worker opens a pass with a data set card, and all workers open the same cards in the same
    order."""

    def __init__(
        self, workers: int, *, lease_s: float = LEASE_S, max_failures: int = 3, saves: bool = False, keeps: int = 2
    ) -> None:
        self.lease_s = lease_s
        self.saves = saves
        """True if the job writes checkpoints. A pass then ends only after a complete checkpoint contains the whole
        pass.
        """
        self.keeps = keeps
        """Number of complete checkpoints that are kept. The job may roll back to the oldest of these checkpoints."""
        self.holders = HolderRegistry(workers, max_failures)
        self.group = GroupSeats()
        self.passes: list[PassLedger] = []
        self.opened: dict[int, int] = {}
        """Number of passes that each rank has opened, to compare its next card with the cards of other ranks."""
        self.kept: set[int] = set()
        """Passes that are completely trained in a complete checkpoint, by the number of their first shard."""
        self.closed = False
        self.era = 0
        """Number of rollbacks."""
        self.origin = LedgerOrigin()
        """State that the job took over from another run's checkpoint."""
        self.changes = 0
        """Counter of changes beyond a deadline. A call that raises this error must be journaled."""

    # ---- requests of workers ----

    def lease(
        self,
        holder: LeaseHolder,
        card: DatasetCard,
        most: int,
        at: float,
        known: Collection[LeaseKey] | None = None,
        era: int | None = None,
        seen: Sequence[PartitionRange] = (),
    ) -> tuple[Grant, ...] | NoLease:
        """Grant up to `most` leases of this card's pass, or return why there is none.

        `known` has all leases that the holder knows. If the holder has leases outside `known`, grant these leases
        again, so that a worker can repeat a request after a lost reply. Leases that the holder knows from another era
        do not count. `seen` has the partitions of a stream.
        """
        if not self._speaks(holder):
            return NoLease.FENCED
        ledger = self.passes[self._pass_of(holder.rank, card)]
        if isinstance(ledger, StreamLedger | BspStreamLedger):
            self.changes += ledger.see(seen)
        if known is not None and era not in (None, self.era):
            known = ()
        if isinstance(ledger, BspLedger):
            turn = ledger.lease(self.group.seat(holder.rank), holder.rank, known)
            self.changes += not isinstance(turn, NoLease)
            return turn
        if known is not None and (again := ledger.again(holder, known)):
            return again
        if isinstance(ledger, StreamLedger):
            most, share = min(most, stream_ledger.MOST_GRANTS), -(-len(ledger.partitions) // self.holders.expected)
            answer = ledger.lease(holder, most=most, share=share, deadline=at + self.lease_s)
        elif ledger.todo.samples and self.holders.should_leave_work(holder.rank):
            answer = NoLease.WAIT
        else:
            answer = self._lease_shards(ledger, holder, most, at)
        self.changes += not isinstance(answer, NoLease)
        return NoLease.WAIT if answer is NoLease.END and self._may_return(ledger) else answer

    def _lease_shards(
        self, ledger: AsyncLedger, holder: LeaseHolder, most: int, at: float
    ) -> tuple[Grant, ...] | NoLease:
        card = ledger.card
        batches, fair = card.shard_batches >> self.holders.halvings.get(holder.rank, 0), ledger.todo.samples
        if self.holders.expected > 1:
            fair //= 2 * self.holders.expected
            batches = min(batches, 1 << (fair // card.batch_size).bit_length() >> 1)
        size, deadline = max(1, batches) * card.batch_size, at + self.lease_s
        most, others = min(most, MOST_GRANTS), self.holders.here - {holder.rank} if ledger.failures else ()
        return ledger.lease(holder, most=most, size=size, budget=fair, deadline=deadline, others=others)

    def report(
        self, holder: LeaseHolder, reports: Sequence[Progress], at: float, era: int | None = None
    ) -> LedgerReply:
        """Apply a holder's reports, and extend the deadline of every lease that they name."""
        if not self._speaks(holder):
            return LedgerReply(fenced=True)
        if era not in (None, self.era):
            return LedgerReply(tuple(LeaseKey(report.shard, report.first) for report in reports))
        revoked: list[LeaseKey] = []
        samples, freed = 0, False
        for report in reports:
            ledger = self.of_shard(report.shard)
            if isinstance(ledger, BspLedger):
                freed |= ledger.report(self.group.seat(holder.rank), report)
                continue
            effect = ledger.report(holder, report, at + self.lease_s) if ledger else NOT_HELD
            samples += effect.samples
            freed |= effect.freed
            if not effect.held and report.offset < report.end:
                revoked.append(LeaseKey(report.shard, report.first))
        if samples:
            self.holders.add_trained(holder.rank, samples)
        wishes = tuple(wish for ledger in self.shared() for wish in ledger.wishes(holder.rank))
        self.changes += freed or samples > 0
        return LedgerReply(tuple(revoked), wishes, freed=freed)

    def end(self, holder: LeaseHolder, card: DatasetCard, samples: int, short: int = 0) -> bool:
        """Set the length of a data set whose length was unknown. The first holder that reaches the end reports the
        length, and how many of these samples full mini-batches would have had, but do not exist."""
        if not self._speaks(holder):
            return False
        ledger = self.passes[self._pass_of(holder.rank, card)]
        ended = isinstance(ledger, AsyncLedger) and ledger.end_at(samples, short)
        self.changes += ended
        return ended

    def cut(self, holder: LeaseHolder, cuts: Sequence[BatchCut], era: int | None = None) -> tuple[BatchCut, ...]:
        """Record early ends of batches of a stream; return the cuts that this holder may make."""
        if not self._speaks(holder) or era not in (None, self.era):
            return ()
        counted = []
        for cut in cuts:
            ledger = self.of_shard(cut.shard)
            is_new = ledger.cut(holder, cut) if isinstance(ledger, StreamLedger) else None
            self.changes += bool(is_new)
            if is_new is not None:
                counted.append(cut)
        return tuple(counted)

    def plan(self, rank: int, shard: int, stretch: OffsetRange) -> bool:
        """Append a range of a stream to the bsp group's sequence, after `rank` has leased all earlier ranges."""
        convoy = self.of_shard(shard)
        planned = isinstance(convoy, BspStreamLedger) and convoy.plan(self.group.seat(rank), stretch)
        self.changes += planned
        return planned

    def fail(self, holder: LeaseHolder, failure: ReadFailure) -> bool:
        """Note that a holder cannot read part of its lease. Return False if the holder does not have the lease."""
        ledger = self.of_shard(failure.shard)
        if isinstance(ledger, BspLedger) or ledger is None or not ledger.fail(holder, failure):
            return False
        self.holders.add_read_failure(holder.rank)
        self.changes += 1
        return True

    # ---- decisions about workers ----

    def fence(self, rank: int, incarnation: int) -> int:
        """Revoke the leases of this and earlier incarnations, and ignore their calls. Return the number of leases."""
        if incarnation <= self.holders.fenced.get(rank, -1):
            return 0
        self.changes += 1
        self.holders.fenced[rank] = incarnation
        for ledger in self.flows():
            ledger.disown(rank)
        return self._give_up(rank, incarnation)

    def expired(self, at: float) -> tuple[LeaseKey, ...]:
        """Return the leases whose deadline has passed. The caller passes them to `take_back`. Changes nothing."""
        return tuple(key for ledger in self.shared() for key, lease in ledger.leases.items() if lease.deadline < at)

    def take_back(self, keys: Sequence[LeaseKey]) -> int:
        """Revoke these leases, so that other workers get their untrained samples. Return the number of live leases."""
        revoked = 0
        for key in keys:
            ledger = self.of_shard(key[0])
            if isinstance(ledger, AsyncLedger | StreamLedger):
                revoked += ledger.take_back([LeaseKey(*key)])
        self.changes += revoked
        return revoked

    def resize(self, rank: int, halvings: int) -> None:
        """Set the size of this rank's future leases: full (0), half (1) or a quarter (2)."""
        self.holders.halvings[rank] = min(HALVINGS, max(0, halvings))
        self.changes += 1

    def wish(self, wish: ShrinkRequest) -> bool:
        """Ask the holder of a lease, in the next reply, to end the lease earlier. Return False if the request changes
        nothing.
        """
        ledger = self.of_shard(wish.shard)
        wished = isinstance(ledger, AsyncLedger | StreamLedger) and ledger.wish(wish)
        self.changes += wished
        return wished

    def assign(self, owners: Sequence[tuple[int, int]]) -> int:
        """Assign partitions, by shard, to ranks. If a different rank holds one of these partitions, that rank returns
        the partition. Return the number of changed owners.

        A fenced rank that has not returned gets no partition, because it would never read the partition.
        """
        reassigned = 0
        for shard, rank in owners:
            ledger = self.of_shard(shard)
            if self.holders.is_here(rank) and isinstance(ledger, StreamLedger):
                reassigned += ledger.assign(shard - ledger.base, rank)
        self.changes += reassigned > 0
        return reassigned

    def expect(self, workers: int) -> None:
        self.holders.expected = max(1, workers)
        self.changes += 1

    def halt(self) -> None:
        """Stop the bsp group before the first shard that no rank has begun."""
        self.group.halted = True
        self.changes += 1
        for lockstep in self.locksteps():
            lockstep.halt()

    def regroup(self, ranks: Sequence[int]) -> None:
        seats = [self.group.seat(rank) for rank in ranks]
        self.group = GroupSeats(tuple(ranks))
        self.changes += 1
        for lockstep in self.locksteps():
            lockstep.regroup(seats)

    def check_group(self, workers: int) -> None:
        """Raise BadInput if a batch of some pass is too small for this many ranks."""
        for lockstep in self.locksteps():
            lockstep.check_group(workers)

    @property
    def largest_group(self) -> int | None:
        """Maximum number of ranks that can share every batch of every pass; None if no pass is bsp."""
        return min((lockstep.smallest for lockstep in self.locksteps()), default=None)

    def close(self) -> None:
        """Stop the job: holders may finish their leases, and no new lease is granted."""
        self.closed = True
        self.changes += 1
        for ledger in self.passes:
            ledger.close()

    def restore(self, note: JobProgress) -> int:
        """Roll back to a restored checkpoint. All leases end. Return the number of samples to train again."""
        before = self.samples_done
        self.passes = passes.passes_back_to(self.passes, note)
        self.kept = {ledger.base for ledger in self.shared() if ledger.base in self.kept and ledger.over}
        self.era += 1
        self.changes += 1
        return before - self.samples_done

    def keep(self, note: JobProgress, *, floors: bool = True) -> None:
        """Record that the checkpoint with this progress is complete, so the job need not train its samples again.

        `floors`: True if the job can no longer roll back to an older checkpoint elsewhere, such as a copy in storage.
        """
        done = {state.base for state in note.ledgers if AsyncLedger.from_state(state, self.holders.max_failures).over}
        done |= {state.base for state in note.flows if StreamLedger.from_state(state, self.holders.max_failures).over}
        self.changes += not done <= self.kept
        self.kept |= done
        for state in note.flows if floors else ():
            ledger = self.of_shard(state.base)
            self.changes += isinstance(ledger, StreamLedger) and ledger.keep(state, self.keeps)

    def resume(self, note: JobProgress, checkpoint: str = "", *, new_data: bool = False) -> None:
        """Continue an earlier run from its checkpoint. Error messages refer to it as `checkpoint`. Samples that are
        trained in the checkpoint stay trained, and all other samples become pending.

        With `new_data`, begin without any pass. Shards get numbers that no slot of the checkpoint knows, so that slots
        apply the batches of the new data.
        """
        self.passes = passes.passes_anew(note, self.holders.max_failures, self.holders.expected, saves=self.saves)
        self.origin = LedgerOrigin(
            checkpoint=checkpoint,
            passes=0 if new_data else len(self.passes),
            next_shard=max(note.next_shard, self.next_shard) if new_data else 0,
            in_step=self.in_step,
            samples_before=note.samples_before + (note.samples if new_data else 0),
        )
        if new_data:
            self.passes = []
        self.kept = {ledger.base for ledger in self.shared() if ledger.over}
        self.changes += 1

    def renew(self, at: float) -> None:
        """Extend all leases, so that workers have time to contact a new master."""
        for ledger in self.shared():
            for lease in ledger.leases.values():
                lease.deadline = at + self.lease_s

    # ---- queries ----

    @property
    def next_shard(self) -> int:
        """Number of the first shard of the next pass."""
        return self.passes[-1].base + self.passes[-1].numbers if self.passes else self.origin.next_shard

    @property
    def has_model(self) -> bool:
        """True if a pass has begun, in this run or in the run whose checkpoint this run continues."""
        return bool(self.passes) or self.origin.next_shard > 0

    def note(self, shard: int = 0, first: int = 0) -> JobProgress:
        """Record the progress before a checkpoint copies slots. For a bsp group, the samples before `first` of shard
        `shard` are trained."""
        return JobProgress(
            ledgers=tuple(ledger.to_state() for ledger in self.ledgers()),
            locksteps=tuple(lockstep.note(shard, first) for lockstep in self.locksteps()),
            flows=tuple(ledger.to_state() for ledger in self.flows()),
            next_shard=self.next_shard,
            samples_before=self.origin.samples_before,
        )

    @property
    def waits_to_end(self) -> bool:
        """True if all samples of a pass are trained, and workers wait only for a checkpoint before the pass ends."""
        return any(ledger.over and self._may_return(ledger) for ledger in self.shared())

    def is_cut_short(self, card: DatasetCard) -> bool:
        """Return True if the job was closed before all of this pass was leased."""
        ledger = next((ledger for ledger in reversed(self.passes) if ledger.card == card), None)
        return self.closed and (ledger is None or not ledger.over)

    @property
    def hopeless(self) -> bool:
        """True if reading failed repeatedly and no sample was trained yet. The cause is then probably not a single bad
        shard or batch."""
        if self.samples_done:
            return False
        most = self.holders.max_failures
        tried = sum(ledger.tries for ledger in self.shared()) >= most
        if self.on_stream:
            return tried or len(self.poisoned()) > most
        return tried and self.holders.all_failed_to_read

    def came_back(self, rank: int) -> bool:
        """Return True if work is pending that this rank could take: returned leases, or partitions."""
        if any(ledger.todo.returned for ledger in self.ledgers()):
            return True
        return not self.closed and any(ledger.wanted_by(rank) for ledger in self.flows())

    def news(self, card: DatasetCard, seen: Sequence[PartitionRange]) -> tuple[PartitionRange, ...]:
        """Return the partitions that are new to the ledger. Changes nothing."""
        known = [
            ledger
            for ledger in self.passes
            if ledger.card == card and isinstance(ledger, StreamLedger | BspStreamLedger)
        ]
        return known[-1].news(seen) if known else tuple(seen)

    def to_state(self) -> JobLedgerState:
        return JobLedgerState(
            lease_s=self.lease_s,
            closed=self.closed,
            ledgers=tuple(ledger.to_state() for ledger in self.ledgers()),
            locksteps=tuple(map(bsp_ledger.plain_data, self.locksteps())),
            flows=tuple(ledger.to_state() for ledger in self.flows()),
            opened=dict(self.opened),
            holders=copy.deepcopy(self.holders),
            group=copy.copy(self.group),
            saves=self.saves,
            keeps=self.keeps,
            kept=tuple(sorted(self.kept)),
            era=self.era,
            origin=self.origin,
        )

    @staticmethod
    def from_state(state: JobLedgerState) -> "JobLedger":
        holders = copy.deepcopy(state.holders)
        most = holders.max_failures
        ledger = JobLedger(holders.expected, lease_s=state.lease_s, max_failures=most, saves=state.saves)
        passes: list[PassLedger] = [AsyncLedger.from_state(noted, most) for noted in state.ledgers]
        passes += [StreamLedger.from_state(noted, most) for noted in state.flows]
        passes += [bsp_ledger.load_bsp_ledger(noted) for noted in state.locksteps]
        ledger.passes = sorted(passes, key=lambda opened: opened.base)
        ledger.holders, ledger.group, ledger.opened = holders, copy.copy(state.group), dict(state.opened)
        ledger.keeps, ledger.kept, ledger.closed, ledger.era = state.keeps, set(state.kept), state.closed, state.era
        ledger.origin = state.origin
        return ledger

    # ---- internals ----

    def _may_return(self, ledger: AsyncLedger | StreamLedger) -> bool:
        """Return True if the loss of a server could make samples of this pass pending again, so that workers must
        stay."""
        return self.saves and not ledger.closed and ledger.base not in self.kept

    def _speaks(self, holder: LeaseHolder) -> bool:
        """Return True unless the holder is fenced. The first call of a new incarnation fences the previous
        incarnation.
        """
        rank, incarnation = holder
        living = self.holders.living.get(rank, -1)
        if incarnation <= self.holders.fenced.get(rank, -1) or incarnation < living:
            return False
        if incarnation > living:
            self._give_up(rank, living)
            self.changes += 1
            self.holders.living[rank] = incarnation
            self.holders.read_failures.pop(rank, None)
            self.opened.pop(rank, None)
            for lockstep in self.locksteps():
                lockstep.rejoin(self.group.seat(rank))
        return True

    def _give_up(self, rank: int, incarnation: int) -> int:
        count = 0
        for ledger in self.shared():
            held = ledger.held.get(rank, {})
            count += ledger.take_back([key for key, lease in held.items() if lease.holder.incarnation <= incarnation])
        return count

    def _pass_of(self, rank: int, card: DatasetCard) -> int:
        shown = self.opened.get(rank, 0)
        for turn in reversed(range(shown)):
            if self.passes[turn].card == card:
                return turn
        turn = self._turn_of(card, shown)
        self._open(rank, card, turn=turn)
        self.opened[rank] = turn + 1
        self.changes += 1
        return turn

    def _turn_of(self, card: DatasetCard, shown: int) -> int:
        """Return the index of the pass that a rank opens next, after it has opened `shown` passes.

        The result is usually the next pass. An incarnation that starts with a later epoch opens the pass of that epoch,
        and creates the pass if necessary.
        """
        for turn in range(shown, len(self.passes)):
            if self.passes[turn].card.first_epoch == card.first_epoch:
                return turn
        ahead = self.passes and card.first_epoch > self.passes[-1].card.first_epoch
        return len(self.passes) if ahead else shown

    def _open(self, rank: int, card: DatasetCard, *, turn: int) -> None:
        if turn < len(self.passes):
            known = self.passes[turn]
            check_same(rank, card, known.card, self.origin.checkpoint if turn < self.origin.passes else "")
            if card.stream is not None and known.card.stream is not None and not known.card.stream.id:
                known.card = card  # the rank that opened the pass did not know the stream's id
            return
        if self.origin.next_shard and card.in_step != self.origin.in_step:
            refuse_other_mode(rank, card, self.origin.checkpoint)
        # the first epoch that the checkpoint does not contain
        if 0 < turn == self.origin.passes and card.stream is None:
            before = replace(self.passes[-1].card, first_epoch=card.first_epoch)
            check_same(rank, card, before, self.origin.checkpoint)
        base = self.next_shard
        opened: PassLedger
        if card.in_step:
            opened = bsp_ledger.open_bsp_ledger(card, base, len(self.group.ranks) or self.holders.expected)
        elif card.stream is not None:
            opened = StreamLedger(card, base, self.holders.max_failures, returns=self.saves)
        else:
            opened = AsyncLedger(card, base, self.holders.max_failures)
        self.passes.append(opened)
        if self.group.halted and isinstance(opened, BspLedger):
            opened.halt()
        if self.closed:
            opened.close()
