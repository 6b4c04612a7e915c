import pytest

from springtide import errors
from springtide.domain.model import cache_rules
from springtide.domain.model.cache_rules import CachedTable, CacheRules


def test_cache_size_is_bytes_a_share_of_rows_or_auto():
    assert cache_rules.rules("64M").size == cache_rules.rules(64 << 20).size == 64 << 20
    assert cache_rules.rules("10%").share == cache_rules.rules(0.1).share == 0.1
    assert cache_rules.rules("auto").auto and not cache_rules.rules("auto").off
    assert cache_rules.rules("off").off and cache_rules.rules(0).off and cache_rules.rules("0%").off
    assert [cache_rules.words(cache_rules.rules(text)) for text in ("auto", "off", "64M", "10%")] == [
        "auto",
        "off",
        "64M",
        "10%",
    ]


def test_unset_cache_options_keep_the_jobs_values():
    job = cache_rules.rules("1G", allocation="laia")
    assert cache_rules.rules(base=job) == job
    assert cache_rules.rules("off", base=job) == CacheRules(size=0, policy="laia")
    assert not cache_rules.rules("off", base=job).idle, "samples are still given out by the policy"
    assert cache_rules.rules("off", allocation="contiguous").idle and cache_rules.OFF.idle


@pytest.mark.parametrize("wrong", ["a lot", "1.5.2G", "x%", "", True])
def test_invalid_cache_size_says_what_is_expected(wrong):
    with pytest.raises(
        errors.BadInput, match="expected a size such as 64M, a share of all rows such as 10%, auto or off"
    ):
        cache_rules.rules(wrong)


def test_numbers_out_of_range_and_unknown_names_are_refused():
    with pytest.raises(errors.BadInput, match="150% of the rows: expected 0%"):
        cache_rules.rules("150%")
    with pytest.raises(errors.BadInput, match="-5 bytes"):
        cache_rules.rules(-5)
    with pytest.raises(errors.UnknownName, match="laia"):
        cache_rules.rules(allocation="laja")


def test_policy_may_enable_worker_to_worker_transfers():
    assert cache_rules.rules("1G", allocation="laia+rows") == CacheRules(size=1 << 30, policy="laia", p2p="rows")
    assert cache_rules.rules("1G", allocation="anneal+gradients").p2p == "gradients"
    assert cache_rules.rules("1G", allocation="laia").p2p == "off"
    with pytest.raises(errors.UnknownName, match="gradients"):
        cache_rules.rules(allocation="laia+gradient")


def test_capacity_counts_rows_of_the_largest_kind_in_bytes_and_all_rows_by_share():
    tables = (CachedTable(id=0, row_bytes=64, rows=1000), CachedTable(id=1, row_bytes=256, rows=3000))
    assert cache_rules.capacity(cache_rules.rules(1024), tables) == 4
    assert cache_rules.capacity(cache_rules.rules("10%"), tables) == 400
    assert cache_rules.capacity(cache_rules.OFF, tables) == cache_rules.capacity(cache_rules.rules(1024), ()) == 0
    with pytest.raises(errors.BadInput, match="table 7 has no row count: give a size in bytes"):
        cache_rules.capacity(cache_rules.rules("10%"), (*tables, CachedTable(id=7, row_bytes=64)))
