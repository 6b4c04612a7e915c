"""Row copies in an async job: bounded in size and age, and reported."""

import types

import numpy as np
import pytest

from springtide import errors
from springtide.domain.model import cache_rules
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.cache import row_cache


def served_table(number, rows=0, **spec):
    spec = TableSpec(id=number, name=f"table {number}", dim=4, **spec)
    return types.SimpleNamespace(spec=spec, name=spec.name, request=types.SimpleNamespace(rows=rows))


def begin(rules, *tables):
    kept = row_cache.for_async(rules, max_staleness=None)
    client = TableClient(TableClient.local(slots=64).backend, behind=kept.wrap)
    client.declare([table.spec for table in tables])
    kept.keep(tables)
    return kept, client


def read(client, keys):
    part = client.dense(0, keys, 4)
    client.pull([part])
    return part.rows()


def test_async_row_cache_is_bounded_by_a_row_share_or_bytes():
    for size, table in (("10%", served_table(0, rows=100)), (1000, served_table(0))):
        kept, client = begin(cache_rules.rules(size), table)
        for first in range(0, 100, 5):
            read(client, range(first, first + 5))
        use = kept.use()
        assert use.on and 0 < use.rows <= 20 and use.size <= 1600, use
        assert use.pulled == 100 and use.hits == 0
        read(client, range(95, 100))
        assert kept.use().hits == 5


def test_rows_read_outside_a_step_come_from_the_servers():
    tables = TableClient.local(slots=64)
    kept = row_cache.for_async(cache_rules.rules("64K", staleness=100), max_staleness=None)
    client = TableClient(tables.backend, behind=kept.wrap)
    for each in (tables, client):
        each.declare([served_table(0).spec])
    kept.keep([served_table(0)])
    before = read(client, [7]).copy()
    part = tables.dense(0, [7], 4)
    part.grads()[:] = -1.0
    tables.push([part], step=1, hyper=[(0, 1.0, 0.0, 0)]).wait()
    assert (read(client, [7]) == before).all()  # a copy, for a step
    assert (client.read("table 0", np.array([7])) == tables.read("table 0", np.array([7]))).all()
    assert (client.read("table 0", np.array([7])) == before + 1).all()


def test_row_share_without_a_row_count_is_refused_with_advice():
    with pytest.raises(errors.BadInput, match="table 0 has no row count: give a size in bytes"):
        begin(cache_rules.rules("10%"), served_table(0))


def test_tables_with_admission_or_eviction_are_left_uncached_and_named():
    kept, client = begin(cache_rules.rules("64K"), served_table(0), served_table(1, min_count=2))
    read(client, [1, 2])
    assert "no rows of table 1, because servers admit or drop these rows" in kept.use().why
    assert kept.use().rows == 2


def test_async_row_cache_is_off_unless_a_size_is_set():
    for rules in (
        cache_rules.CacheRules(),
        cache_rules.rules("auto"),
        cache_rules.rules("off"),
        cache_rules.rules("0%"),
    ):
        assert row_cache.for_async(rules, max_staleness=None) is None


def test_max_staleness_and_an_async_row_cache_exclude_each_other():
    with pytest.raises(errors.BadInput, match="Use only one of them"):
        row_cache.for_async(cache_rules.rules("64M"), max_staleness=2)
    with pytest.raises(errors.BadInput, match="rows that lack -1 trainings"):
        cache_rules.rules("64M", staleness=-1)
