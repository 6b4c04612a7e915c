"""Pure. Settings and counters of the row cache in workers, and the policies that assign samples to workers.

`worker.cache.sample_allocation` applies the rules. If the settings leave the choice to Springtide,
`planning.guards.cache_benefit` decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from springtide import errors
from springtide.domain.core import resources, validation

Policy = Literal["anneal", "laia", "random", "contiguous"]
POLICIES: tuple[Policy, ...] = ("anneal", "laia", "random", "contiguous")
Way = Literal["off", "rows", "gradients"]
WAYS: tuple[Way, ...] = ("off", "rows", "gradients")
WAY = "transfer between workers"
AUTO_SHARE = 0.1  # share of all rows in a cache whose size is automatic, as in the paper
AUTO_SIZE = 256 << 20  # bytes of a cache whose size is automatic, if a table has no row count
DEFAULT_STALENESS = 10  # the smallest limit for which the paper on HET found no loss of quality


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """Settings of the row cache of each worker. By default, a bsp group measures whether a cache pays off; an async job
    has no cache."""

    size: int | None = None
    """Bytes for rows and optimizer state in each worker; 0 means no cache. None means that `share` determines the
    size."""
    share: float | None = None
    """Size of a worker's cache as a share of all rows. A share needs the row count of every table."""
    at_once: bool = False
    """True if the user asked for "auto". Then the job may already measure the benefit of a cache in the first pass."""
    policy: Policy | None = None
    """Policy that assigns the samples of a batch to workers. "contiguous" cuts the batch into ranges and "random"
    assigns samples at random. "laia" and "anneal" use the location of cached rows. None means "anneal" with a cache and
    "contiguous" without."""
    p2p: Way = "off"
    """Data that workers send directly to each other. "rows": a row goes directly to its next trainer if only one worker
    trains it next. The row then takes one transfer instead of two. "gradients": in addition, if a few workers train a
    row in the same step, one of these workers keeps the row and receives the other workers' gradients. "off": all data
    goes through servers.
    """
    staleness: int = DEFAULT_STALENESS
    """async: how many updates by other workers a cached row may miss at most when it is used."""
    dirty: int = 256 << 20
    """Maximum bytes of rows that exist only in a worker. Above this limit, the worker writes all these rows back to
    servers.
    """

    @property
    def auto(self) -> bool:
        """True if the job measures whether a cache pays off."""
        return self.size is None and self.share is None

    @property
    def off(self) -> bool:
        return self.size == 0 or self.share == 0

    @property
    def idle(self) -> bool:
        """True if the job has no cache and assigns samples in contiguous ranges."""
        return self.off and self.policy in (None, "contiguous")

    def __post_init__(self) -> None:
        if self.policy is not None:
            validation.choice(self.policy, "allocation policy", POLICIES)
        validation.choice(self.p2p, WAY, WAYS)
        if self.size is not None and self.size < 0:
            raise errors.BadInput(f"a cache of {self.size} bytes: expected 0 (none) or more")
        if self.share is not None and not 0 <= self.share <= 1:
            raise errors.BadInput(f"a cache of {100 * self.share:g}% of the rows: expected 0% (none) to 100%")
        if not 0 <= self.staleness < 1 << 31:
            raise errors.BadInput(f"rows that lack {self.staleness} trainings: expected 0 or more, below 2^31")
        if self.dirty < 1:
            raise errors.BadInput(f"at most {self.dirty} bytes of rows not written back: expected 1 or more")


OFF = CacheRules(size=0)


def rules(
    size: str | int | float | None = None,
    *,
    allocation: str | None = None,
    staleness: int | None = None,
    base: CacheRules | None = None,
) -> CacheRules:
    """Return cache rules with this size, allocation policy and staleness; None keeps the value of `base`.

    A size is "auto", "off", bytes ("64M" or an int) or a share of all rows ("10%" or a float). A policy may end in
    "+rows" or "+gradients", which selects the data that workers exchange directly (`CacheRules.p2p`).
    """
    base = base or CacheRules()
    if allocation is not None:
        policy, _, way = allocation.partition("+")
        base = replace(
            base,
            policy=validation.choice(policy, "allocation policy", POLICIES),
            p2p=validation.choice(way or "off", WAY, WAYS),
        )
    if staleness is not None:
        wanted = "a whole number of trainings that a kept row may lack, 0 or more"
        base = replace(base, staleness=validation.number(staleness, "cache_staleness", wanted, least=None))
    if size is None:
        return base
    wanted = "expected a size such as 64M, a share of all rows such as 10%, auto or off"
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


def words(rules: CacheRules) -> str:
    if rules.auto:
        return "auto"
    if rules.off:
        return "off"
    return f"{100 * rules.share:g}%" if rules.share is not None else resources.show_memory(rules.size or 0)


class CachedTable(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a table that its cache needs."""

    id: int
    row_bytes: int
    """Bytes of a row with its optimizer state."""
    rows: int = 0
    """Number of rows; 0 means unknown."""


def capacity(rules: CacheRules, tables: tuple[CachedTable, ...]) -> int:
    """Return the number of rows that fit into a worker's cache; 0 without a cache or without tables."""
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
    """Reason why the cache is on or off."""
    passing: bool = False
    """True if the state is temporary: before the first steps, or between two passes."""
    rows: int = 0
    """Rows in the cache now."""
    size: int = 0
    dirty: int = 0
    """Bytes of rows that exist only in the cache."""
    hits: int = 0
    """Number of rows that a step found in the cache."""
    pulled: int = 0
    """Number of rows that a step pulled from servers."""
    pushed: int = 0
    """Number of gradients and rows sent to servers."""
    passed: int = 0
    """Number of rows received from other workers."""
    flushes: int = 0

    @property
    def looked_up(self) -> int:
        return self.hits + self.pulled + self.passed

    @property
    def saved(self) -> int:
        """Number of transfers that the cache saved, compared with pulling each row and pushing its gradient."""
        return 2 * self.looked_up - self.pulled - self.pushed - self.passed

    def __str__(self) -> str:
        if not self.on:
            return f"off: {self.why}" if self.why else "off"
        looked_up = max(1, self.looked_up)
        return (
            f"on, {100 * self.hits / looked_up:.0f}% of {self.looked_up:,} rows found in the cache, {self.saved:,} of "
            f"{2 * self.looked_up:,} transmissions saved ({50 * self.saved / looked_up:.0f}%); {self.rows:,} rows, "
            f"{resources.show_memory(self.size)}, {resources.show_memory(self.dirty)} of them not on servers yet"
            + (f"; {self.why}" if self.why else "")
        )


def together(uses: Iterable[CacheUse]) -> CacheUse | None:
    """Return the summed counters of all caches; None without reports.

    All caches start and stop at the same step, but report at different times. Therefore `on` and `why` come from the
    first report.
    """
    known = list(uses)
    if not known:
        return None
    added = ("rows", "size", "dirty", "hits", "pulled", "pushed", "passed")
    sums = {name: sum(getattr(count, name) for count in known) for name in added}
    flushes = max(count.flushes for count in known)
    return CacheUse(on=known[0].on, why=known[0].why, passing=known[0].passing, flushes=flushes, **sums)
