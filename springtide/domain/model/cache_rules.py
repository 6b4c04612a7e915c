"""Pure. Settings and counters of the row cache in workers, and the policies that assign samples to workers of a bsp
group.

In: `cli.job.run` and `job.prepare`. Next: `domain.spec.job_spec` stores the rules. `worker.cache.sample_allocation`
applies them. `planning.guards.cache_benefit` decides where the rules leave the choice open.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from springtide import errors
from springtide.domain.core import resources, validation

Policy = Literal["anneal", "laia", "random", "contiguous"]
POLICIES: tuple[Policy, ...] = ("anneal", "laia", "random", "contiguous")
Order = Literal["lru", "lfu"]
ORDERS: tuple[Order, ...] = ("lru", "lfu")
Way = Literal["off", "rows", "gradients"]
WAYS: tuple[Way, ...] = ("off", "rows", "gradients")
AUTO_SHARE = 0.1  # of all rows, as in the paper: where the size is ours to choose
AUTO_SIZE = 256 << 20  # bytes, where a table has no row count
DEFAULT_STALENESS = 10  # as little as bounded staleness was found to cost no quality at (HET)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """Settings of the row cache of each worker. By default, a bsp group measures whether a cache pays; an async job has
    no cache."""

    size: int | None = None
    """Bytes that rows and their optimizer state may take in a worker; 0: no cache. None: by `share`."""
    share: float | None = None
    """Part of all rows that fits in a worker's cache, where every table's row count is known. None: by `size`."""
    at_once: bool = False
    """Whether it may be found out in the first pass already if a cache pays: asked for, not merely left open."""
    policy: Policy | None = None
    """Who trains which sample of a batch: "contiguous" cuts it into runs; "random" by lot; "laia" and "anneal" go
    by where its rows are. None: "anneal" with a cache, "contiguous" without one."""
    order: Order = "lru"
    """Which row leaves a full cache: the one used longest ago, or least often."""
    p2p: Way = "off"
    """What goes from worker to worker: "rows" that only the receiver trains next, one way instead of two; "gradients":
    also what a few workers make of a row, which one of them keeps and trains. Else all goes over servers."""
    staleness: int = DEFAULT_STALENESS
    """async: trainings by other workers that a kept row may lack when it is used."""
    dirty: int = 256 << 20
    """Bytes of rows in a worker that are nowhere else: with more of them all are written back to the servers."""

    @property
    def auto(self) -> bool:
        """Whether the job finds out by itself if a cache pays."""
        return self.size is None and self.share is None

    @property
    def off(self) -> bool:
        return self.size == 0 or self.share == 0

    @property
    def idle(self) -> bool:
        """Whether there is neither a cache nor anything else than runs to give out."""
        return self.off and self.policy in (None, "contiguous")

    def __post_init__(self) -> None:
        if self.policy is not None and self.policy not in POLICIES:
            raise errors.UnknownName("allocation policy", self.policy, POLICIES)
        if self.p2p not in WAYS:
            raise errors.UnknownName("way from worker to worker", self.p2p, WAYS)
        if self.order not in ORDERS:
            raise errors.UnknownName("order of a cache", self.order, ORDERS)
        if self.size is not None and self.size < 0:
            raise errors.BadInput(f"a cache of {self.size} bytes: wanted 0 (none) or more")
        if self.share is not None and not 0 <= self.share <= 1:
            raise errors.BadInput(f"a cache of {100 * self.share:g}% of the rows: wanted 0% (none) to 100%")
        if not 0 <= self.staleness < 1 << 31:
            raise errors.BadInput(f"rows that lack {self.staleness} trainings: wanted 0 or more, below 2^31")
        if self.dirty < 1:
            raise errors.BadInput(f"at most {self.dirty} bytes of rows not written back: wanted 1 or more")


OFF = CacheRules(size=0)


def rules(
    size: str | int | float | None = None,
    *,
    allocation: str | None = None,
    staleness: int | None = None,
    base: CacheRules | None = None,
) -> CacheRules:
    """The rules with this size, this policy of allocation, this staleness; None leaves what `base` says.

    A size is "auto", "off", bytes ("64M" or an int) or a share of all rows ("10%" or a float). A policy may end with
    "+rows" or "+gradients": what then goes straight from worker to worker (`CacheRules.p2p`).
    """
    base = base or CacheRules()
    if allocation is not None:
        policy, _, way = allocation.partition("+")
        base = replace(base, policy=_policy(policy), p2p=_way(way or "off"))
    if staleness is not None:
        wanted = "a whole number of trainings that a kept row may lack, 0 or more"
        base = replace(base, staleness=validation.number(staleness, "cache_staleness", wanted, least=None))
    if size is None:
        return base
    wanted = "wanted a size such as 64M, a share of all rows such as 10%, auto or off"
    if isinstance(size, bool):
        raise errors.BadInput(f"cache={size}: {wanted}")
    if isinstance(size, int):
        return replace(base, size=size, share=None)
    if isinstance(size, float):
        return replace(base, size=None, share=size)
    text = size.strip().lower()
    if text == "auto":
        return replace(base, size=None, share=None, at_once=True)
    if text == "off":
        return replace(base, size=0, share=None)
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else None
        size = resources.parse_memory(text) if share is None else None
    except ValueError:
        raise errors.BadInput(f"cache {size!r}: {wanted}") from None
    return replace(base, size=size, share=share)


def _policy(text: str) -> Policy:
    for known in POLICIES:
        if text == known:
            return known
    raise errors.UnknownName("allocation policy", text, POLICIES)


def _way(text: str) -> Way:
    for known in WAYS:
        if text == known:
            return known
    raise errors.UnknownName("way from worker to worker", text, WAYS)


def words(rules: CacheRules) -> str:
    if rules.auto:
        return "auto"
    if rules.off:
        return "off"
    return f"{100 * rules.share:g}%" if rules.share is not None else resources.show_memory(rules.size or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTable:
    """Table as the cache sees it."""

    id: int
    row_bytes: int
    """Of a row with its optimizer state."""
    rows: int = 0
    """0: nobody knows."""


def capacity(rules: CacheRules, tables: tuple[CachedTable, ...]) -> int:
    """Rows that fit in a worker's cache; 0 where there is none, or nothing to keep in it."""
    if rules.off or not tables:
        return 0
    if rules.size is not None:
        return rules.size // max(table.row_bytes for table in tables)
    share = AUTO_SHARE if rules.share is None else rules.share
    open_ended = [table.id for table in tables if not table.rows]
    if open_ended and rules.auto:
        return AUTO_SIZE // max(table.row_bytes for table in tables)
    if open_ended:
        raise errors.BadInput(
            f"a cache of {100 * share:g}% of the rows, but table {open_ended[0]} has no row count: give a size in bytes"
        )
    return int(share * sum(table.rows for table in tables))


def size_in_bytes(rules: CacheRules, tables: tuple[CachedTable, ...]) -> int:
    """Bytes that a worker's cache may take, where it is held to bytes and not to rows."""
    if rules.size is not None:
        return rules.size
    rows = capacity(rules, tables)
    known = sum(table.rows for table in tables)
    return rows * sum(table.rows * table.row_bytes for table in tables) // known if known else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """Counters of the cache of one worker, or of all workers together."""

    on: bool = False
    why: str = ""
    """Why it is on, or off."""
    passing: bool = False
    """Whether that is so for now only, by nobody's decision: before the first steps, between passes."""
    rows: int = 0
    """In it now, and so on."""
    size: int = 0
    dirty: int = 0
    """Bytes of rows that are nowhere else."""
    hits: int = 0
    """Rows that a step found here."""
    pulled: int = 0
    """Rows that a step had to ask servers for."""
    pushed: int = 0
    """Gradients and rows that went to servers."""
    passed: int = 0
    """Rows that came from another worker."""
    flushes: int = 0

    @property
    def looked_up(self) -> int:
        return self.hits + self.pulled + self.passed

    @property
    def saved(self) -> int:
        """Transmissions that were spared: without a cache each row of a step is pulled, and its gradient pushed."""
        return 2 * self.looked_up - self.pulled - self.pushed - self.passed

    def __str__(self) -> str:
        if not self.on:
            return f"off: {self.why}" if self.why else "off"
        looked_up = max(1, self.looked_up)
        return (
            f"on, {100 * self.hits / looked_up:.0f}% of {self.looked_up:,} rows found in it, {self.saved:,} of "
            f"{2 * self.looked_up:,} transmissions saved ({50 * self.saved / looked_up:.0f}%); {self.rows:,} rows, "
            f"{resources.show_memory(self.size)}, of which {resources.show_memory(self.dirty)} are nowhere else"
            + (f"; {self.why}" if self.why else "")
        )


def decided(on: bool | None, now: CacheUse | None) -> tuple[str, str] | None:
    """What is decided about the cache, and why; None: nothing else than was told last (`on`, None: nothing yet)."""
    if now is None or not now.why or now.passing or now.on == on:
        return None
    return "keep rows in the workers" if now.on else "keep no rows in the workers", now.why


def together(uses: Iterable[CacheUse]) -> CacheUse | None:
    """The caches of all workers as one; None where nobody has said anything.

    They begin and end together, but do not report together: whether it is on, and why, are the word of one of them.
    """
    known = list(uses)
    if not known:
        return None
    added = ("rows", "size", "dirty", "hits", "pulled", "pushed", "passed")
    sums = {name: sum(getattr(one, name) for one in known) for name in added}
    flushes = max(one.flushes for one in known)
    return CacheUse(on=known[0].on, why=known[0].why, passing=known[0].passing, flushes=flushes, **sums)
