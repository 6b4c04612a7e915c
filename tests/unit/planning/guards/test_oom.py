"""An impending out-of-memory of a server is forecast; others are left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.planning.guards import memory
from springtide.planning.guards.memory import ServerMemory

MB = 2**20


def steady(rows_a_sample: float, *, upto: float = 1e6, count: int = 12) -> memory.Growth:
    return memory.fit(
        [memory.RowCount(upto * (i + 1) / count, rows_a_sample * upto * (i + 1) / count) for i in range(count)]
    )


def reading(live_mb: float, *, server: int = 0, limit_mb: float = 512, static_mb: float = 50) -> ServerMemory:
    held = live_mb * 1.2 * MB
    return ServerMemory(server=server, live=live_mb * MB, held=held, used=held + static_mb * MB, limit=limit_mb * MB)


def test_growth_past_the_memory_limit_is_forecast():
    ahead = memory.forecast(reading(95), steady(1.0), samples_at_end=1e7)  # ten times as many rows at the end

    assert ahead.peak / MB == pytest.approx(50 + 950 * memory.SLACK, rel=0.05)
    assert ahead.crosses_at is not None and 2.5e6 < ahead.crosses_at < 4e6
    decision = memory.decide([ahead], samples=1e6, samples_at_end=1e7)
    assert decision.servers == 4
    assert "would run out" in decision.why and "full after" in decision.why and "512 MB" in decision.why


def test_sufficient_memory_changes_nothing():
    ahead = memory.forecast(reading(10), steady(1.0), samples_at_end=1e7)

    assert ahead.crosses_at is None
    assert memory.decide([ahead], samples=1e6, samples_at_end=1e7).servers == 1


def test_distant_memory_shortage_is_rechecked_later():
    ahead = memory.forecast(reading(32), steady(1.0), samples_at_end=1e7)
    assert ahead.crosses_at is not None and 7e6 < ahead.crosses_at < 9.5e6

    early = memory.decide([ahead], samples=1e6, samples_at_end=1e7)
    later = memory.decide([ahead], samples=ahead.crosses_at - 1e5, samples_at_end=1e7)
    assert early.servers == 1 and "for now" in early.why
    assert later.servers == 2


def test_no_server_is_added_when_the_data_is_over():
    full = reading(340, limit_mb=480)  # beyond nine tenths of its limit, and nothing grows any more
    ahead = memory.forecast(full, steady(1.0), samples_at_end=1e6)

    decision = memory.decide([ahead], samples=1e6, samples_at_end=1e6)

    assert ahead.crosses_at is not None
    assert decision.servers == 1 and "no sample is left" in decision.why


def test_unused_memory_held_by_tables_counts_as_free():
    emptied = ServerMemory(server=0, live=50 * MB, held=300 * MB, used=350 * MB, limit=512 * MB)

    assert memory.forecast(emptied, steady(1.0), samples_at_end=4e6).peak == emptied.used


def test_reason_is_given_when_the_static_part_alone_exceeds_the_limit():
    ahead = memory.forecast(reading(95, limit_mb=50), steady(1.0), samples_at_end=1e7)
    decision = memory.decide([ahead], samples=1e6, samples_at_end=1e7)

    assert decision.servers == 1 and "do not help" in decision.why


@given(some.floats(1, 500), some.integers(1, 6), some.floats(1.5, 30), some.floats(100, 4000))
def test_needed_number_of_servers_is_computed(live_mb, servers, times, limit_mb):
    rows = steady(1.0)
    now = [reading(live_mb, server=i, limit_mb=limit_mb) for i in range(servers)]
    ahead = [memory.forecast(one, rows, samples_at_end=1e6 * times) for one in now]
    decision = memory.decide(ahead, samples=1e6, samples_at_end=1e6 * times)

    assert decision.servers >= servers
    if servers < decision.servers < memory.MOST_SERVERS:
        live = sum(one.live_at_end for one in ahead)
        assert live * memory.SLACK / decision.servers + ahead[0].static <= limit_mb * MB * (1 - memory.SPARE) + 1
