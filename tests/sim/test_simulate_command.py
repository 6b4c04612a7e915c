"""`springtide simulate`: table, JSON, plots, and errors with advice."""

import json

import pytest

from springtide.cli import app
from springtide.sim.world import workload


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(workload.example())
    return path


def test_simulate_prints_an_80_column_table(example, capsys):
    assert app.main(["simulate", str(example), "--policy", "static"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 80


def test_simulate_prints_json(example, capsys):
    assert app.main(["simulate", str(example), "--policy", "static", "--policy", "oracle", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["systems"]) == {"static", "oracle"} and said["jobs"] == 3
    assert said["systems"]["oracle"]["jct_p50_s"] < said["systems"]["static"]["jct_p50_s"]


def test_jobs_are_drawn_from_a_seed_and_the_plot_is_an_image(tmp_path, capsys):
    picture = tmp_path / "day.png"
    assert app.main(["simulate", "--policy", "static", "--jobs", "15", "--seed", "4", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "15 jobs drawn from seed 4" in capsys.readouterr().out


def test_failing_policy_is_an_error_beside_the_others_figures(example, capsys):
    assert app.main(["simulate", str(example), "--policy", "static", "--policy", "json:dumps", "--json"]) == 1
    said = capsys.readouterr()
    assert set(json.loads(said.out)["systems"]) == {"static", "json:dumps"}
    assert (
        "error: policy json:dumps failed each time, so its jobs got no decision" in said.err
        and "static" not in said.err[-100:]
    )


def test_example_trace_is_printed(capsys):
    assert app.main(["simulate", "--example"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--policy", "statik"], "no policy named 'statik'. Did you mean 'static'"),
        (["nowhere.yaml"], "no file nowhere.yaml"),
        (["--plot", "day.txt", "--jobs", "1"], "expected a file name that ends in .png"),
        (["--plot", "nowhere/day.png", "--jobs", "1"], "there is no folder"),
    ],
)
def test_simulate_mistakes_are_named_before_anything_runs(given, said, capsys):
    assert app.main(["simulate", *given]) == 2
    assert said in capsys.readouterr().err
