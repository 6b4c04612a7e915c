"""Random reader histories: no stream offset is lost, leased twice or cut twice."""

import collections

import hypothesis.strategies as st
import msgspec
from hypothesis import settings, stateful

from springtide.data.ledger.job_ledger import JobLedger, JobLedgerState
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.leases import Grant, LeaseHolder, LeaseKey, NoLease, Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut, PartitionRange, StreamCard
from tests.oracles import ledger_invariants

WORKERS, BATCH = 3, 5
RANKS = st.integers(0, WORKERS - 1)
CHANCE = st.randoms(use_true_random=False)


class Reader:
    """A lease with the cuts known to its holder."""

    def __init__(self, grant: Grant, cuts):
        self.shard, self.first, self.end = grant.shard, grant.first, grant.end
        self.claimed = self.offset = grant.first
        self.cuts = {cut.at for cut in cuts if (cut.shard, cut.first) == (grant.shard, grant.first)}

    @property
    def key(self):
        return LeaseKey(self.shard, self.first)

    @property
    def word(self):
        return Progress(self.shard, self.first, self.offset, self.end)


class FlowHistory(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        partitions=st.integers(1, 4), start=st.sampled_from(["earliest", "latest"]), keeps=st.integers(1, 2)
    )
    def open(self, partitions, start, keeps):
        self.card = DatasetCard(samples=0, batch_size=BATCH, stream=StreamCard(url="log:///x", start=start))
        self.new_book = lambda: JobLedger(workers=WORKERS, lease_s=10, keeps=keeps)
        self.book, self.journal, self.now, self.keeps = self.new_book(), [], 0.0, keeps
        self.ends = dict.fromkeys(range(partitions), 7)
        self.sealed = False
        self.incarnation = dict.fromkeys(range(WORKERS), 0)
        self.hands: dict[LeaseHolder, dict[LeaseKey, Reader]] = collections.defaultdict(dict)
        self.trained: set[tuple[int, int]] = set()
        self.batches: dict[int, set[tuple[int, int]]] = collections.defaultdict(set)
        """All batches that were ever trained, by shard."""
        self.notes = [(self.book.note(), set())]

    def call(self, name, *arguments, **named):
        before = self.book.changes
        answer = getattr(self.book, name)(*arguments, **named)
        if self.book.changes != before:
            self.journal.append((name, arguments, named))
        return answer

    def living(self, rank):
        return LeaseHolder(rank, self.incarnation[rank])

    def seen(self):
        return tuple(
            PartitionRange(number, 0 if self.card.stream.start == "earliest" else end, end, self.sealed)
            for number, end in self.ends.items()
        )

    def say(self, holder):
        """Report all leases of a live holder, and follow the verdict."""
        hands = self.hands[holder]
        words = [hand.word for hand in hands.values()]
        held = {
            key: lease
            for key, lease in (self.book.flows()[0].leases.items() if self.book.flows() else ())
            if lease.holder == holder
        }
        before = {key: (lease.offset, lease.end) for key, lease in held.items()}
        verdict = self.call("report", holder, words, self.now)
        for word in words:
            key = LeaseKey(word.shard, word.first)
            if key in before:
                offset, end = before[key]
                self.trained.update((word.shard, n) for n in range(offset, min(word.offset, end)))
            if word.offset == word.end:
                hands.pop(key, None)
        for key in verdict.revoked:
            hands.pop(key, None)
        for wish in verdict.wishes:
            hand = hands.get(LeaseKey(wish.shard, wish.first))
            if hand is not None:
                hand.end = max(hand.claimed, hand.offset, min(hand.end, wish.end))

    # ---- readers ----

    @stateful.rule(rank=RANKS, most=st.integers(1, 5))
    def lease(self, rank, most):
        holder = self.living(rank)
        answer = self.call("lease", holder, self.card, most, self.now, list(self.hands[holder]), seen=self.seen())
        if isinstance(answer, NoLease):
            assert answer is NoLease.WAIT or self.book.flows()[0].over
            return
        cuts = self.book.cuts_of(answer)
        for grant in answer:
            self.hands[holder][LeaseKey(grant.shard, grant.first)] = Reader(grant, cuts)

    @stateful.rule(rank=RANKS, chance=CHANCE)
    def train(self, rank, chance):
        """Full batches, or up to a known cut; at the end of a partition that grows a cut is asked for first."""
        holder = self.living(rank)
        for hand in list(self.hands[holder].values()):
            for _ in range(chance.randrange(4)):
                head = min(hand.end, self.ends[hand.shard])
                full = (hand.claimed // BATCH + 1) * BATCH
                cuts = [at for at in hand.cuts if hand.claimed < at < full]
                end = min([*cuts, full])
                if hand.claimed >= head:
                    break
                if end > head and not (self.sealed or hand.end < FAR):
                    asked = BatchCut(hand.shard, hand.first, head)
                    if asked not in self.call("cut", holder, [asked], self.book.era):
                        break
                    hand.cuts.add(head)
                end = min(end, head)
                self.push(hand.shard, hand.claimed, end)
                hand.claimed = end
            hand.offset = hand.claimed if chance.random() < 0.7 else hand.offset

    def push(self, shard, first, end):
        """Check that any two trained batches are equal or disjoint."""
        for a, b in self.batches[shard]:
            assert (a, b) == (first, end) or b <= first or end <= a, f"{first}..{end} is torn by {a}..{b}"
        self.batches[shard].add((first, end))

    @stateful.rule(chance=CHANCE, turns=st.integers(1, 4))
    def readers_work(self, chance, turns):
        for _ in range(turns):
            rank = chance.randrange(WORKERS)
            self.lease(rank, 5)
            self.train(rank, chance)
            self.records_come(chance)
            if chance.random() < 0.7:
                self.say(self.living(rank))

    @stateful.rule(rank=RANKS)
    def give_all_back(self, rank):
        holder = self.living(rank)
        for hand in self.hands[holder].values():
            hand.end = hand.claimed = hand.offset
        self.say(holder)

    @stateful.rule(rank=RANKS, chance=CHANCE)
    def fail(self, rank, chance):
        holder = self.living(rank)
        self.say(holder)
        if self.hands[holder]:
            hand = chance.choice(list(self.hands[holder].values()))
            if hand.claimed < hand.end:
                self.call("fail", holder, ReadFailure(hand.shard, hand.first, hand.claimed, "unreadable"))
                hand.end = hand.claimed
                self.say(holder)

    @stateful.rule(rank=RANKS, chance=CHANCE)
    def a_dead_one_speaks(self, rank, chance):
        old = LeaseHolder(rank, self.incarnation[rank] - 1)
        self.say(self.living(rank))
        if old.incarnation >= 0:
            state = self.book.to_state()
            words = [hand.word._replace(offset=hand.end) for hand in self.hands[old].values()]
            assert self.call("report", old, words, self.now).fenced
            assert self.call("cut", old, [BatchCut(word.shard, word.first, word.first + 1) for word in words]) == ()
            assert self.book.to_state() == state

    # ---- the stream ----

    @stateful.rule(chance=CHANCE)
    def records_come(self, chance):
        if not self.sealed:
            for number in self.ends:
                self.ends[number] += chance.randrange(9)

    @stateful.rule()
    def a_partition_is_added(self):
        if not self.sealed and len(self.ends) < 6:
            self.ends[len(self.ends)] = 3

    @stateful.precondition(lambda self: self.book.flows() and self.book.flows()[0].partitions)
    @stateful.rule(chance=CHANCE)
    def the_stream_is_sealed(self, chance):
        self.sealed = self.sealed or chance.random() < 0.1

    # ---- the master ----

    @stateful.rule(chance=CHANCE)
    def assign(self, chance):
        self.call("assign", [(chance.randrange(7), chance.randrange(WORKERS)) for _ in range(3)])

    @stateful.rule(rank=RANKS, relaunch=st.booleans())
    def fence(self, rank, relaunch):
        if relaunch:
            self.call("fence", rank, self.incarnation[rank])
        self.incarnation[rank] += 1

    @stateful.rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds):
        self.now += seconds
        self.call("take_back", self.book.expired(self.now))

    @stateful.rule()
    def a_checkpoint_is_made(self):
        note = msgspec.msgpack.decode(msgspec.msgpack.encode(self.book.note()), type=JobProgress)
        self.notes.append((note, set(self.trained)))
        self.notes = self.notes[-self.keeps :]
        self.call("keep", note)

    @stateful.rule(chance=CHANCE)
    def a_server_is_restored(self, chance):
        """Roll back to any kept checkpoint; trained counts are in all of them."""
        note, then = chance.choice(self.notes)
        gone = self.call("restore", note)
        kept = self.trained & then
        assert gone == len(self.trained) - len(kept)
        self.trained = kept
        self.hands.clear()
        # newer ones do not count any more
        self.notes = self.notes[: [id(one) for one, _ in self.notes].index(id(note)) + 1]

    @stateful.rule()
    def the_master_is_restarted(self):
        plain = msgspec.msgpack.encode(self.book.to_state())
        again = JobLedger.from_state(msgspec.msgpack.decode(plain, type=JobLedgerState))
        assert again.to_state() == self.book.to_state()
        again.changes = self.book.changes
        self.book = again

    @stateful.invariant()
    def nothing_is_lost_or_doubled(self):
        if hasattr(self, "book"):
            ledger_invariants.check(self.book)
            assert self.book.totals().samples_done == len(self.trained)

    def teardown(self):
        if not hasattr(self, "book"):
            return
        replayed = self.new_book()
        for name, arguments, named in self.journal:
            getattr(replayed, name)(*arguments, **named)
        for one in (replayed, self.book):
            one.renew(0.0)
        assert replayed.to_state() == self.book.to_state()
        self.finish()

    def finish(self):
        """Seal the stream; one worker survives and trains the rest."""
        self.sealed = True
        for rank in range(WORKERS):
            self.call("fence", rank, self.incarnation[rank])
            self.incarnation[rank] += 1
        self.call("expect", 1)
        last = self.living(0)
        while True:
            answer = self.call("lease", last, self.card, 16, self.now, seen=self.seen())
            if answer is NoLease.END:
                break
            assert answer is not NoLease.WAIT, "something is with nobody"
            cuts = self.book.cuts_of(answer)
            for grant in answer:
                self.hands[last][LeaseKey(grant.shard, grant.first)] = hand = Reader(grant, cuts)
                for end in [*sorted(hand.cuts), hand.end]:
                    while hand.claimed < end:
                        upto = min(end, (hand.claimed // BATCH + 1) * BATCH)
                        self.push(hand.shard, hand.claimed, upto)
                        hand.claimed = upto
                hand.offset = hand.end
            self.say(last)
        ledger_invariants.check(self.book)
        given_up = {(each.shard, n) for each in self.book.poisoned() for n in range(each.first, each.end)}
        starts = {number: partition.start for number, partition in self.book.flows()[0].partitions.items()}
        assert starts.keys() == self.ends.keys()
        everything = {(number, n) for number, end in self.ends.items() for n in range(starts[number], end)}
        assert self.trained.isdisjoint(given_up) and self.trained | given_up == everything


FlowHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestFlowHistory = FlowHistory.TestCase
