import pytest

from springtide_lab.bench.core import harness


def contestant(name, figures, log):
    values = iter(figures)

    def measure():
        log.append(name)
        return next(values)

    return measure


def test_contestants_alternate_both_ways_without_counting_the_warm_up():
    log = []
    ours, peer = contestant("ours", [99, 10, 12, 14], log), contestant("peer", [1, 5, 4, 7], log)
    rounds = harness.alternate({"ours": ours, "peer": peer}, rounds=3)
    assert log == ["peer", "ours", "ours", "peer", "peer", "ours", "ours", "peer"]
    assert rounds.figures == {"ours": [10, 12, 14], "peer": [5, 4, 7]}
    assert rounds.count == 3


def test_ratio_is_the_median_of_neighbouring_rounds_with_quartiles():
    rounds = harness.Rounds(figures={"ours": [10, 12, 14], "peer": [5, 4, 7]})
    ratio = rounds.ratio("ours", "peer")
    assert (ratio.value, ratio.low, ratio.high) == (2, 2, 2.5)
    assert rounds.median("ours") == 12
    assert str(ratio) == "2.00 (2.00-2.50)"


def test_extra_measurements_of_a_round_are_kept_with_its_figure():
    ours = contestant("ours", [{"figure": value, "cpu_s": value / 10} for value in (9, 10, 20)], [])
    rounds = harness.alternate({"ours": ours, "peer": lambda: 5}, rounds=2)
    assert rounds.figures == {"ours": [10, 20], "peer": [5, 5]}
    assert rounds.part("cpu_s").figures == {"ours": [1, 2]}


def test_rate_counts_all_repetitions():
    calls = []
    measure = harness.rate(lambda: calls.append(1), units=10, seconds=0.0)
    assert measure() > 0
    assert len(calls) == 1


def test_ratio_of_no_rounds_is_none():
    with pytest.raises(ValueError, match="no rounds"):
        harness.spread([])
