"""`springtide reproduce herald`: counts match an independent count, and its rows hold."""

import json

import numpy as np
import pytest

from springtide.cli import app
from springtide.embedding.schedule.scheduler import ScheduleSettings
from springtide_lab.bench.cache import allocate, id_streams
from springtide_lab.bench.cache.allocate import SentRows
from springtide_lab.reproduce.herald import preset, reproduction, rows_counted, rows_timed, traffic

TINY = preset.HeraldSize(iterations=3, epoch=2_048, workers=(8,))
COST = preset.Costs(necessary_s=0.01, goodput=0.8, source="made up")


@pytest.fixture
def stream_file(tmp_path):
    """An id file like that of real data."""
    random = np.random.default_rng(0)
    np.save(tmp_path / "ids.npy", random.zipf(1.3, (13 * 1024 * 2, 3)) % 4000)
    return tmp_path / "ids.npy"


def test_id_file_is_reproduced_with_every_figure(stream_file, capsys, tmp_path):
    command = [
        "reproduce",
        "herald",
        "--quick",
        "--json",
        "--ids",
        str(stream_file),
        "--out",
        str(tmp_path / "figures"),
    ]
    assert app.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    said = json.loads(lines[-1])
    assert said["ids"] == "ids.npy" and said["quick"]
    for one in said["rows"]:
        assert one["ours"] is not None or one["why"], one
    figures = {one["figure"].removeprefix("004 ") for one in said["rows"]}
    assert {f"Fig. {number}" for number in (3, 4, 6, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)} | {
        "Table 2"
    } <= figures
    assert (tmp_path / "figures" / "herald-004-fig-11.png").stat().st_size > 1000


def test_ids_belong_to_herald_only(stream_file, capsys):
    assert app.main(["reproduce", "dlrover-rm", "--ids", str(stream_file)]) == 2
    assert "springtide reproduce herald" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_native_scheduler_counts_match_plain_versioned_caches(share):
    """Two ways that know nothing of each other: random allocation and every update pushed, on the same stream."""
    stream = id_streams.make("w4", samples=16 * 1024)
    batches, capacity = stream.batches(1024), int(share * stream.total_rows)
    plain = traffic.count_plain(batches, stream.rows, workers=8, capacity=capacity, skip=4)
    settings = ScheduleSettings(workers=8, capacity_rows=capacity, policy="random", on_demand=False)
    native = allocate.run_scheme(settings, batches, warmup=4)
    assert native.push == pytest.approx(plain.pushes, rel=0.01)  # other random parts of the same batches
    assert native.pull == pytest.approx(plain.pulls, rel=0.01)


def test_versions_separate_misses_from_updates_in_a_small_case():
    both, split = np.array([[0], [0]]), np.array([[1], [2]])  # one table; two workers have a sample each
    plain = traffic.count_plain([both, both, split, split], [3], workers=2, capacity=3, skip=0)
    assert plain.pushes * 8 == 8
    assert plain.misses * 8 >= 4 and plain.stale * 8 >= 2  # row 0 misses twice and is stale twice; 1 and 2 miss
    once = traffic.count_plain([both, split, both], [3], workers=2, capacity=1, skip=2)
    assert once.misses == 1.0 and once.stale == 0.0  # evicted in between


def test_degree_of_infrequency_is_that_of_cached_rows():
    seen = [np.array([100, 3, 2, 0]), np.array([90, 80, 0, 0])]
    assert traffic.doi(seen, 0.5, samples=400, workers=8) == pytest.approx(1 / 4)  # 100, 90, 80, 3; 50 a worker
    assert traffic.doi_by_table(seen, 0.5, samples=400, workers=8) == [0.5, 0.0]
    assert rows_counted.best_tables(np.array([[0, 0]] * 300 + [[1, 0], [2, 0]]), [40, 4], 8)[0] == 0


def test_larger_batch_has_more_distinct_rows_but_sublinearly():
    ids = np.random.default_rng(1).integers(0, 5000, (8192, 2))
    assert 1 < traffic.growth(ids, workers=8) < 4


def test_each_half_of_the_scheduler_reduces_traffic_and_both_most():
    load = preset.Workload(name="w4")
    some = {way: rows_counted.sent(load, way, TINY, 0).total for way in rows_counted.WAYS}
    ways = rows_counted
    assert (
        some[ways.HERALD]
        < min(some[ways.LAIA], some[ways.PLAN])
        <= max(some[ways.LAIA], some[ways.PLAN])
        < some[ways.PLAIN]
    )
    assert some[ways.OURS] <= some[ways.HERALD]


def test_communication_time_grows_with_rows_and_shrinks_with_servers():
    load = SentRows(pull=100, push=50, largest_pull=120, largest_push=60)
    one, two, many = (preset.communication_s(load, COST, workers=8, servers=servers) for servers in (1, 2, 100))
    assert one == pytest.approx(8 * 150 * preset.ROW_BYTES / 1e9) and two == pytest.approx(one / 2)
    assert many == pytest.approx(180 * preset.ROW_BYTES / 1e9)


def test_timed_rows_name_their_costs_or_how_to_measure_them():
    load = preset.Workload(name="w4")
    for one in (*rows_timed.timed(load, TINY, [0], COST), *rows_timed.shapes(load, TINY, [0], COST)):
        assert one.ours is not None and "made up" in one.why
    for one in (*rows_timed.timed(load, TINY, [0], None), *rows_timed.shapes(load, TINY, [0], None)):
        assert one.ours is None and "bench cache" in one.why


def test_unpublished_costs_and_figures_are_missing(tmp_path):
    assert preset.costs(tmp_path / "cache.json") is None
    assert all(one.ours is None and "publish" in one.why for one in rows_timed.measured(tmp_path))
    published = {
        "details": {"necessary_s": 0.02, "goodput": 0.9},
        "quick": False,
        "date": "2026-11-16",
        "goals": [{"id": "vs_het_1gbit", "value": 1.5, "target": 1.09}],
    }
    (tmp_path / "cache.json").write_text(json.dumps(published))
    cost = preset.costs(tmp_path / "cache.json")
    assert cost is not None and cost.necessary_s == 0.02 and "2026-11-16" in cost.source
    assert rows_timed.measured(tmp_path)[0].ours == 1.5


def test_figures_are_in_the_papers_order():
    assert reproduction._order("004 Fig. 4") < reproduction._order("004 §2.2") < reproduction._order("004 Fig. 6")
    assert reproduction._order("004 Fig. 11") < reproduction._order("004 Table 2") < reproduction._order("004 Fig. 12")
