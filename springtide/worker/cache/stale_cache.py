"""Row cache of a worker in an async job. The worker uses its copy of a row until the copy lacks too many updates of
other workers.

In: the job's `CacheRules` and its tables. Out: a native cache between steps and servers, and its statistics. Servers
see every push, so training stays exactly once. Design: docs/design/caching.md.
"""

from collections.abc import Sequence

from springtide import _native, errors
from springtide.domain.model.cache_rules import CachedTable, CacheRules, CacheUse, size_in_bytes, words
from springtide.embedding.lookup.table_client import native_spec
from springtide.embedding.lookup.tables import ServedTable


class StaleRowCache:
    """Row cache with bounded staleness: `wrap` puts it before the tables, then `keep` chooses the tables."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._backend: _native.VersionedBackend | None = None
        self._why = ""

    def wrap(self, tables: _native.Backend) -> _native.Backend:
        rules = self._rules
        self._backend = _native.VersionedBackend(tables, capacity_bytes=0, order=rules.order, staleness=rules.staleness)
        return self._backend

    def keep(self, served: Sequence[ServedTable]) -> None:
        """Cache rows of those tables that can be cached. The tables must already be declared."""
        assert self._backend is not None
        chosen = [table for table in served if _native.CachedBackend.cacheable(native_spec(table.spec))]
        self._backend.cache_tables([table.spec.id for table in chosen])
        size = self._backend.image_bytes
        tables = tuple(
            CachedTable(id=table.spec.id, row_bytes=size(table.spec.id), rows=table.request.rows) for table in chosen
        )
        self._backend.resize(size_in_bytes(self._rules, tables))
        left = [table.name for table in served if table not in chosen]
        self._why = f"asked for, {words(self._rules)} a worker" if chosen else ""
        if left:
            self._why += (
                f"{'; ' if chosen else ''}no rows of {', '.join(left)}, which servers admit or drop by themselves"
            )

    def use(self) -> CacheUse:
        assert self._backend is not None
        stats = self._backend.stats()
        mean = stats["staleness_sum"] / max(1, stats["hits"])
        lacked = f"copies lacked {mean:.2f} trainings, {stats['staleness_max']} at most of {self._rules.staleness}"
        return CacheUse(
            on=True,
            why=f"{self._why}; {lacked}",
            rows=stats["rows"],
            size=stats["bytes"],
            hits=stats["hits"],
            pulled=stats["misses"] + stats["stale"],
            pushed=stats["pushed_gradients"],
        )


def for_async(rules: CacheRules, *, max_staleness: int | None) -> StaleRowCache | None:
    """Return a cache if the user gave a size, else None. Only bsp groups measure whether a cache is worth it
    (`auto`)."""
    if rules.auto or rules.off:
        return None
    if max_staleness is not None:
        raise errors.BadInput(
            f"max_staleness={max_staleness} and a cache of {words(rules)}: pushes that are counted do not see copies. "
            "Use one or the other; cache_staleness bounds what a copy may lack"
        )
    return StaleRowCache(rules)
