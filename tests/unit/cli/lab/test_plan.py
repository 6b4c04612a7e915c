"""`springtide plan` for a run or a file, and `explain` for past plans."""

import json
import pathlib

import pytest

from springtide.cli.app import main
from springtide.telemetry import event_sentences as events
from springtide.telemetry import logs, planner_views

EXAMPLE = pathlib.Path(__file__).parents[4] / "examples" / "plan_job.yaml"


def test_plan_of_a_file_fits_80_columns(capsys):
    assert main(["plan", str(EXAMPLE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert any(line.strip().startswith("->") for line in lines)


def test_plan_of_a_file_is_one_json_object(capsys):
    assert main(["plan", str(EXAMPLE), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (job,) = said["jobs"]
    assert said["policy"] == "springtide"
    assert job["model"]["fitted"] and job["model"]["coefficients"]["grad"] > 0
    (chosen,) = [one for one in job["candidates"] if one["chosen"]]
    assert chosen["shape"] == job["plan"]["shape"]


def test_plan_accepts_another_policy(capsys):
    assert main(["plan", str(EXAMPLE), "--policy", "static", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["policy"] == "static"
    assert said["jobs"][0]["plan"] is None
    assert main(["plan", str(EXAMPLE), "--policy", "statik"]) == 2
    assert "Did you mean 'static'" in capsys.readouterr().err


def test_plan_of_a_run_uses_its_last_planner_view(tmp_path, capsys):
    files = logs.make_run(tmp_path, "ads")
    logs.write_card(files, logs.RunCard(name="ads", script="train.py", began_at=1.0, agent_pid=1, agent_start=-1))
    assert main(["plan", "ads", "--logs", str(tmp_path)]) == 2
    assert "its size is fixed" in capsys.readouterr().err
    planner_views.write(files.view, planner_views.read(EXAMPLE))
    assert main(["plan", "ads", "--logs", str(tmp_path)]) == 0
    assert "plan    " in capsys.readouterr().out


def test_invalid_plan_file_is_refused_with_its_line(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE.read_text().replace("stage: adjusting", "stage: resting"))
    assert main(["plan", str(path)]) == 2
    assert "jobs[0].stage" in (said := capsys.readouterr().err)
    assert f"{path}:22" in said
    assert "expected one of waiting, sampling" in said
    path.write_text(EXAMPLE.read_text().replace("{policy: springtide", "{priority: remainign, policy: springtide"))
    assert main(["plan", str(path)]) == 2
    assert "no priority named 'remainign'. Did you mean 'remaining'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("taken", "planned: 2 workers, 1,200 samples/s expected: faster [optimizing]"),
        ("refused", "a plan (2 workers) was refused: faster [optimizing]"),
        ("nothing", ""),
        ("failed", "no plan: faster"),
        ("done", "the plan is applied: 2 workers"),
    ],
)
def test_explain_shows_plans_and_their_outcomes(outcome, said):
    event = {
        "event": "plan",
        "at": 1.0,
        "outcome": outcome,
        "shape": "2 workers",
        "why": "faster",
        "stage": "optimizing",
        "throughput": 1200.0,
    }
    assert events.sentence(event) == said
