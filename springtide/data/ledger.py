"""Pure. Who trains which shard: every shard goes todo -> leased -> done, and none is lost or handed out twice.

In: cards and requests of workers, as `master.desk` gets them. Out: a `Grant`, or why there is none. A `Ledger` keeps
one pass over one data set for workers that go each at their own pace (async); a `Lockstep` one for a group that goes
through the same shards together (bsp). A `Book` keeps them all.
"""

from dataclasses import dataclass, field, fields
from enum import Enum

from springtide import errors
from springtide.data import shards
from springtide.domain.samples import DatasetCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Samples `first` to `first + count` of a shard, for one holder. `shard` is unique in the job."""

    shard: int
    epoch: int
    index: int
    first: int
    count: int


class Nothing(Enum):
    """Why a worker gets no shard."""

    WAIT = "others still hold shards, which may come back"
    END = "all shards of the pass are done, or held by the asker itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Shards by state."""

    total: int = 0
    leased: int = 0
    done: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        """Both together."""
        return Totals(total=self.total + other.total, leased=self.leased + other.leased, done=self.done + other.done)


def grant_of(card: DatasetCard, base: int, running: int) -> Grant:
    """The whole of the running-th shard of a pass."""
    epoch, index = divmod(running, card.shards)
    return Grant(
        shard=base + running,
        epoch=card.first_epoch + epoch,
        index=index,
        first=0,
        count=shards.size(card, index),
    )


@dataclass(slots=True)
class Ledger:
    """One pass over one data set: shards go to whoever asks first."""

    card: DatasetCard
    base: int
    """Number of the first shard; the numbers of a job's passes do not overlap."""
    total: int = field(init=False)
    holder_of: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    next_running: int = 0

    def __post_init__(self) -> None:
        self.total = self.card.epochs * self.card.shards

    def close(self) -> None:
        """Hand out nothing more."""
        self.total = self.next_running

    def lease(self, worker: int) -> Grant | Nothing:
        """The next shard, in the order of the epochs."""
        if self.next_running < self.total:
            grant = grant_of(self.card, self.base, self.next_running)
            self.next_running += 1
            self.holder_of[grant.shard] = worker
            return grant
        return Nothing.WAIT if any(holder != worker for holder in self.holder_of.values()) else Nothing.END

    def finish(self, worker: int, shard: int) -> None:
        """The worker has trained the shard, and every server has its gradients. Saying so twice does no harm."""
        if shard in self.done:
            return
        holder = self.holder_of.get(shard)
        if holder != worker:
            held = f"worker-{holder} holds it" if holder is not None else "nobody holds it"
            raise errors.BadInput(f"worker-{worker} reports shard {shard} as done, but {held}")
        del self.holder_of[shard]
        self.done.add(shard)

    def totals(self) -> Totals:
        """Shards by state."""
        return Totals(total=self.total, leased=len(self.holder_of), done=len(self.done))

    def check(self) -> None:
        """Every invariant; tests call it after each step."""
        handed_out = set(range(self.base, self.base + self.next_running))
        assert not self.done & self.holder_of.keys(), "a shard is both leased and done"
        assert self.done | self.holder_of.keys() == handed_out, "a shard that was handed out is neither leased nor done"


@dataclass(slots=True)
class Lockstep:
    """One pass over one data set: all ranks of a bsp group get the same shards in the same order."""

    card: DatasetCard
    base: int
    workers: int
    total: int = field(init=False)
    leased_to: list[int] = field(init=False)
    done_by: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.card.epochs * self.card.shards
        self.leased_to = [0] * self.workers
        self.done_by = [0] * self.workers

    def close(self) -> None:
        """Hand out no new shard; ranks that are behind still get what another has begun, or it would wait for ever."""
        self.total = max(self.leased_to)

    def lease(self, worker: int) -> Grant | Nothing:
        """The rank's next shard."""
        running = self.leased_to[worker]
        if running == self.total:
            return Nothing.END
        self.leased_to[worker] += 1
        return grant_of(self.card, self.base, running)

    def finish(self, worker: int, shard: int) -> None:
        """The rank has trained its part of the shard; ranks finish shards in order."""
        running = shard - self.base
        if running < self.done_by[worker]:
            return
        if running != self.done_by[worker] or running >= self.leased_to[worker]:
            raise errors.BadInput(
                f"worker-{worker} reports shard {shard} as done, but its next one is {self.base + self.done_by[worker]}"
            )
        self.done_by[worker] += 1

    def totals(self) -> Totals:
        """Shards by state; one is done when every rank has done its part."""
        done = min(self.done_by)
        return Totals(total=self.total, leased=max(self.leased_to) - done, done=done)

    def check(self) -> None:
        """Every invariant; tests call it after each step."""
        for leased, done in zip(self.leased_to, self.done_by, strict=True):
            assert 0 <= done <= leased <= self.total, "a rank has done what it was not given"


@dataclass(slots=True)
class Book:
    """All passes of a job. A worker opens the next pass by showing its card; all must show the same cards in turn."""

    workers: int
    passes: list[Ledger | Lockstep] = field(default_factory=list)
    shown: dict[int, list[DatasetCard]] = field(default_factory=dict)
    closed: bool = False

    def close(self) -> None:
        """The job is to stop: what is leased may be finished, nothing more is handed out."""
        self.closed = True
        for book in self.passes:
            book.close()

    def lease(self, worker: int, card: DatasetCard) -> Grant | Nothing:
        """A shard of the pass that this card stands for."""
        cards = self.shown.setdefault(worker, [])
        if card not in cards:
            self._open(worker, card, turn=len(cards))
            cards.append(card)
        return self.passes[cards.index(card)].lease(worker)

    def finish(self, worker: int, shard: int) -> None:
        """Pass the word on to the pass the shard belongs to."""
        for book in self.passes:
            if book.base <= shard < book.base + book.total:
                return book.finish(worker, shard)
        raise errors.BadInput(f"worker-{worker} reports shard {shard} as done, but this job has no such shard")

    def totals(self) -> Totals:
        """Shards of all passes so far, by state."""
        return sum((book.totals() for book in self.passes), Totals())

    @property
    def in_step(self) -> bool:
        """Whether the workers go through the data together."""
        return any(book.card.in_step for book in self.passes)

    @property
    def epochs(self) -> int:
        """Epochs of all passes so far."""
        return sum(book.card.epochs for book in self.passes)

    def _open(self, worker: int, card: DatasetCard, *, turn: int) -> None:
        if turn < len(self.passes):
            _check_same(worker, card, self.passes[turn].card)
            return
        base = self.passes[-1].base + self.passes[-1].total if self.passes else 0
        self.passes.append(Lockstep(card, base, self.workers) if card.in_step else Ledger(card, base))
        if self.closed:
            self.passes[-1].close()


def _check_same(worker: int, card: DatasetCard, known: DatasetCard) -> None:
    """All workers must see the same data: a shard means the same samples to each of them."""
    for each in fields(card):
        mine, theirs = getattr(card, each.name), getattr(known, each.name)
        if mine != theirs:
            raise errors.BadInput(
                f"worker-{worker} shows a data set with {each.name}={mine}, "
                f"other workers one with {each.name}={theirs}; "
                "all workers must read the same data: give each the same files and arguments"
            )
