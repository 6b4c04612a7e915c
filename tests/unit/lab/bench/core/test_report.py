import json

import pytest

from springtide import errors
from springtide_lab import bench
from springtide_lab.bench.core import harness, report

BOX = harness.Box(
    cpu="Abacus",
    cores=2,
    memory_gib=24.0,
    load_before=0.0,
    others_before=0.0,
    others_during=0.5,
    steal_during=0.0,
    idle=False,
)


def result(**more):
    goals = (
        report.goal("speed", harness.Ratio(value=1.23456, low=1.1, high=1.3), target=1.2),
        report.goal("waste", 0.9, target=0.8, better="lower"),
        report.goal("peer", None, target=3, why="pip could not reach its index"),
    )
    return report.Result(
        goals=goals, rounds=3, columns=("what", "M rows/s"), rows=(("ours", 12.3456), ("peer", None)), **more
    )


def test_last_line_is_one_json_object_with_the_goals(capsys):
    report.show(report.complete(result(), name="store", quick=True, box=BOX), json=True)
    printed = capsys.readouterr().out.splitlines()
    told = json.loads(printed[-1])
    assert told["bench"] == "store" and told["rounds"] == 3 and told["quick"] is True
    assert told["machine"]["idle"] is False and "python" in told["versions"]
    assert [(g["id"], g["value"], g["target"], g["better"], g["met"]) for g in told["goals"]] == [
        ("speed", 1.2346, 1.2, "higher", True),
        ("waste", 0.9, 0.8, "lower", False),
        ("peer", None, 3, "higher", False),
    ]


def test_report_tables_fit_80_columns_and_flag_a_busy_machine(capsys):
    report.show(report.complete(result(), name="store", quick=False, box=BOX), json=False)
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert "NOT IDLE" in printed and "not measured" in printed and "missed" in printed


def test_worst_ratio_depends_on_the_better_direction():
    ratios = [harness.Ratio(value=v, low=v, high=v) for v in (0.7, 0.5, 0.9)]
    assert report.worst(ratios).value == 0.5
    assert report.worst(ratios, better="lower").value == 0.9
    assert report.worst([]) is None


@pytest.mark.parametrize(("value", "text"), [(None, "-"), ("x", "x"), (0.0123456, "0.0123"), (1234567.0, "1,234,567")])
def test_figures_have_three_significant_digits(value, text):
    assert report.figure(value) == text


def test_unknown_benchmark_suggests_the_nearest():
    with pytest.raises(errors.UnknownName, match="Did you mean 'store-growth'"):
        bench.run("store-grwth")


def test_restart_delay_applies_only_to_stop_and_restart():
    assert bench.restart_delay(["stop-restart=60"]) == 60 and bench.restart_delay([]) == 0
    with pytest.raises(errors.UnknownName, match="Did you mean 'stop-restart'"):
        bench.restart_delay(["stop-restat=60"])
    with pytest.raises(errors.BadInput, match="stop-restart=soon: expected NAME=SECONDS"):
        bench.restart_delay(["stop-restart=soon"])
