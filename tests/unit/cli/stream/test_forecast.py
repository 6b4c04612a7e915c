"""`springtide forecast`: backtests of each model on a trace, and the next day."""

import json

import pytest

from springtide.cli.app import main
from tests.unit.planning.online import generated_traffic


@pytest.fixture
def trace(tmp_path):
    values = generated_traffic.days(12).values * 1800
    path = tmp_path / "traffic.csv"
    lines = [f"{place * 1800},{value:.0f}" for place, value in enumerate(values)]
    path.write_text("\n".join(["when,count", *lines]) + "\n")
    return path


def test_forecast_compares_models_and_shows_the_next_day(trace, capsys):
    assert main(["forecast", str(trace), "--known", "8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["days"] == 12 and said["step_s"] == 1800 and set(said["models"]) == {"default", "last-day", "last-week"}
    assert said["models"]["default"]["tried"] == 4 and said["models"][said["best"]]["wape"] < 0.2
    assert len(said["next"]["mean"]) == 48

    assert main(["forecast", str(trace), "--known", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[3:])) <= 120 and any("the next day by" in line for line in lines)


def test_forecast_model_can_be_named_and_mistakes_are_reported(trace, tmp_path, capsys):
    assert main(["forecast", str(trace), "--model", "last-day", "--known", "8", "--last", "2"]) == 0
    assert "2 days forecast, each from the 8 before" in " ".join(capsys.readouterr().out.split())
    for wrong, told in (
        (["--model", "lastday"], "Did you mean 'last-day'"),
        (["--known", "40"], "12 days of traffic: expected 40"),
        (["--step", "7"], "a step that a day is a multiple of"),
    ):
        assert main(["forecast", str(trace), *wrong]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
    assert main(["forecast", str(tmp_path / "none.csv")]) == 2
    assert "none.csv; expected a CSV file" in " ".join(capsys.readouterr().err.split())
