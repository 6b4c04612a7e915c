"""Diagnose a lagging server: more load than its peers is hot, otherwise its machine is slow."""

from hypothesis import given
from hypothesis import strategies as some

from springtide.domain.spec.job_spec import GuardRules
from springtide.planning.guards import hot_servers
from springtide.planning.guards.hot_servers import Cause, ServerPace

RULES = GuardRules()


def causes(*paces: ServerPace) -> list[Cause]:
    return [verdict.cause for verdict in hot_servers.judge(paces, RULES)]


def pace(
    rank: int, keys_s: float = 2e6, ns_a_key: float = 100, cpu: float = 0.5, limit: float | None = 1.0
) -> ServerPace:
    return ServerPace(rank=rank, keys_s=keys_s, ns_a_key=ns_a_key, cpu=cpu, cpu_limit=limit)


def test_equal_servers_get_no_verdict():
    assert causes(pace(0), pace(1), pace(2)) == [Cause.NONE] * 3


def test_throttled_server_is_slow_with_or_without_a_limit():
    assert causes(pace(0), pace(1, ns_a_key=3000, cpu=0.03, limit=None)) == [Cause.NONE, Cause.SLOW]
    assert causes(pace(0, limit=None), pace(1, ns_a_key=500, cpu=0.25, limit=0.25)) == [Cause.NONE, Cause.SLOW]


def test_server_with_more_load_and_no_spare_cpu_is_hot():
    (_, _, hot) = hot_servers.judge([pace(0), pace(1), pace(2, keys_s=4e6, ns_a_key=400, cpu=0.95)], RULES)

    assert hot.cause is Cause.HOT
    assert "server-2 has 2.0 times its peers' load and takes 4.0 times as long a key" in hot.why


def test_more_load_with_spare_cpu_is_no_problem():
    assert causes(pace(0), pace(1, keys_s=4e6, cpu=0.3)) == [Cause.NONE, Cause.NONE]


def test_mostly_idle_server_gets_no_verdict():
    slow, loaded = pace(1, keys_s=50_000, ns_a_key=2000, limit=None), pace(1, keys_s=1e5, limit=None)

    assert causes(pace(0, keys_s=50_000), slow) == [Cause.NONE, Cause.NONE]
    assert causes(pace(0, keys_s=10_000), loaded) == [Cause.NONE, Cause.NONE]
    assert "works only 10% of the time" in hot_servers.judge([pace(0, keys_s=50_000), slow], RULES)[1].why


def test_server_without_a_limit_is_hot_only_when_busy_nearly_all_the_time():
    busy, loaded = pace(1, keys_s=9e6, limit=None), pace(1, keys_s=4e6, limit=None)

    assert causes(pace(0), busy) == [Cause.NONE, Cause.HOT]
    assert causes(pace(0), loaded) == [Cause.NONE, Cause.NONE]  # at work for 40% of the time: others wait for nothing


def test_far_slower_server_is_found_by_its_last_report_alone():
    verdict = hot_servers.far_behind([pace(0), pace(1, keys_s=3e5, ns_a_key=1500)], RULES)

    assert verdict is not None and (verdict.rank, verdict.cause) == (1, Cause.SLOW)
    assert hot_servers.far_behind([pace(0), pace(1, keys_s=6e5, ns_a_key=500)], RULES) is None
    assert hot_servers.far_behind([pace(0)], RULES) is None


def test_single_server_has_no_peers():
    (verdict,) = hot_servers.judge([pace(0, ns_a_key=1e6)], RULES)

    assert verdict.cause is Cause.NONE and "no working peer" in verdict.why


@given(some.lists(some.tuples(some.floats(0, 1e7), some.floats(1, 1e6), some.floats(0, 4)), min_size=1, max_size=8))
def test_servers_are_never_all_hot_or_all_slow(given_paces):
    paces = [pace(i, *one) for i, one in enumerate(given_paces)]

    assert set(causes(*paces)) not in ({Cause.HOT}, {Cause.SLOW})


def quota(
    rank: int, cpu: float = 0.5, due: float = 0.7, throttled: float = 0.0, seconds: float = 0.4
) -> hot_servers.CpuQuotaUse:
    return hot_servers.CpuQuotaUse(rank=rank, cpu=cpu, due=due, throttled=throttled, seconds=seconds)


def test_server_given_less_cpu_than_its_quota_is_slow():
    verdict = hot_servers.cut_short([quota(0), quota(1, cpu=0.02, throttled=1.0)], RULES)

    assert verdict is not None and (verdict.rank, verdict.cause) == (1, Cause.SLOW)
    assert "server-1 gets 0.02 of the 0.7 CPUs that it should have" in verdict.why


def test_server_throttled_at_its_own_limit_or_idle_is_not_cut_short():
    assert hot_servers.cut_short([quota(0), quota(1, cpu=0.7, throttled=1.0)], RULES) is None
    assert hot_servers.cut_short([quota(0), quota(1, cpu=0.01)], RULES) is None
    assert (
        hot_servers.cut_short([quota(0), quota(1, cpu=0.3, throttled=0.6)], RULES) is None
    )  # in bursts, its due in each


def test_quota_period_begun_before_the_first_reading_is_ignored():
    """It may have used its quota before the window: with one period of 0.1 s in view nothing is certain."""
    assert hot_servers.cut_short([quota(0), quota(1, cpu=0.0, throttled=1.0, seconds=0.1)], RULES) is None
    assert hot_servers.cut_short([quota(0), quota(1, cpu=0.3, throttled=1.0, seconds=0.2)], RULES) is None
    assert hot_servers.cut_short([quota(0), quota(1, cpu=0.02, throttled=1.0, seconds=0.2)], RULES) is not None


@given(
    due=some.floats(0.05, 4.0), begun=some.floats(0.0, 0.1), periods=some.integers(1, 5), spent=some.floats(0.0, 1.0)
)
def test_server_with_its_full_quota_is_never_cut_short_at_any_reading_time(due, begun, periods, spent):
    """It uses each quota at once or not: the first period began `begun` ago and was partly used."""
    seconds = periods * hot_servers.PERIOD_S - begun
    if seconds <= 0:
        return
    used = due * hot_servers.PERIOD_S * (periods - spent)  # `spent` of the first quota had gone before the first look
    seen = quota(1, cpu=used / seconds, due=due, throttled=periods * hot_servers.PERIOD_S / seconds, seconds=seconds)
    assert hot_servers.cut_short([quota(0), seen], RULES) is None


def test_no_server_is_replaced_when_all_are_cut_short():
    assert hot_servers.cut_short([quota(0, cpu=0.02, throttled=1.0), quota(1, cpu=0.02, throttled=1.0)], RULES) is None
