"""`springtide reproduce dlrover-rm`: a tiny version whose rows hold."""

import json
import runpy

import msgspec
import pytest

from springtide.cli import app
from springtide.sim.world.parameters import MODELS
from springtide_lab.reproduce import report
from springtide_lab.reproduce.dlrover_rm import cluster_days, testbed, trouble
from tests.architecture import sources


@pytest.mark.soak
def test_tiny_version_gives_every_row_with_seeds_or_a_reason(capsys, tmp_path):
    assert app.main(["reproduce", "dlrover-rm", "--quick", "--json", "--out", str(tmp_path / "figures")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    found = json.loads(lines[-1])["rows"]
    for one in found:
        assert {"figure", "what", "paper", "ours", "goal", "met", "seeds", "spread"} <= set(one)
        assert one["ours"] is not None or one["why"], one
    figures = {one["figure"] for one in found}
    wanted = {"000 Fig. 7", "000 Fig. 8", "000 Fig. 9", "000 Fig. 10", "000 Fig. 11", "000 Fig. 12", "000 Fig. 13"}
    wanted |= {"000 Fig. 14", "000 Fig. 15", "000 Table 4", "001 Table 1", "001 Table 2", "001 Fig. 8", "001 Fig. 9"}
    assert wanted <= figures
    for number in (7, 10, 11, 12, 13, 14, 15):
        picture = tmp_path / "figures" / f"dlrover-rm-000-fig-{number}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_printed_rows_keep_numbers_whole_within_80_columns(capsys):
    shown = report.row(
        "000 Fig. 10", "widedeep: JCT over tuned by hand", 0.0141, [-0.13541], goal=0.0141, better="lower"
    )
    report.show([shown, report.row("001 Fig. 9", "steps", 10, [12363.94])], title="dlrover-rm")
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if "000 Fig. 10" in line)
    assert line.split()[-5:] == ["0.0141", "-0.1354", "≤", "0.0141", "met"]
    assert any(line.split()[-1:] == ["12,364"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_options_unused_by_a_paper_are_refused(capsys):
    assert app.main(["reproduce", "herald", "--jobs", "20"]) == 2
    assert "--jobs 20: herald has no use for it" in capsys.readouterr().err


def test_published_pages_match_their_tool():
    tool = runpy.run_path(str(sources.ROOT / "tools" / "reproduction_page.py"))
    paths = sorted(tool["FOLDER"].glob("*.json"))
    assert len(paths) == 4
    for path in paths:
        run = json.loads(path.read_text())
        least = 500 if path.stem == "dlrover-rm" else 100
        assert not run["quick"] and run["seeds"] >= 3 and run.get("jobs", 500) >= least
        assert path.with_suffix(".md").read_text() == tool["page"](run), "run tools/reproduction_page.py"


def test_goal_is_met_by_the_median_over_seeds():
    met = report.row("f", "w", 0.3, [0.1, 0.4, 0.5], goal=0.3)
    assert met.met and met.ours == 0.4 and met.spread == (0.1, 0.5) and met.seeds == 3
    assert not report.row("f", "w", 0.3, [0.4], goal=0.3, better="lower").met
    assert report.row("f", "w", 0.3, [0.4]).met is None
    assert report.row("f", "w", 0.3, [None]).ours is None


def test_goals_missed_on_the_test_bed_are_beyond_the_bound():
    missed = [one for one in (*trouble.rows([3]), *testbed.tables([3])) if one.met is False]
    assert {one.figure for one in missed} <= {"000 Fig. 13"}
    for one in missed:
        assert one.bound is not None and one.ours <= one.bound < float(one.goal.removeprefix("≥ ")), one
        assert one.ours >= 0.98 * one.bound, "and ours comes near what anyone could do"


def test_oracle_is_never_slower_than_our_policy_on_the_test_bed():
    for model in MODELS.values():
        job = testbed.job_of(model, 0)
        assert testbed.end(job, "oracle").jct_s <= testbed.end(job, "springtide").jct_s


def test_our_policy_is_near_the_oracle_for_any_model_and_width():
    near = [
        one for one in (*testbed.completion([4]), *testbed.other_widths([4])) if one.figure == "oracle" and one.goal
    ]
    assert len(near) == 4 and all(one.met for one in near), near


def test_baselines_match_the_papers_speed_after_twelve_minutes():
    for one in testbed.cold_start([3]):
        if one.paper == "100-150":
            assert 100 <= one.ours <= 150, one


def test_dlrovers_equations_find_a_size_within_the_quota_on_the_test_bed():
    for name in ("widedeep", "xdeepfm"):
        one, many, size = testbed.by_use(MODELS[name])
        assert 0.9 * 200 <= size.cpu <= 200 and many > 5 * one


def test_same_seed_gives_the_same_rows():
    twice = [trouble.rows([3]) + testbed.fitted([3]) for _ in range(2)]
    assert msgspec.json.encode(twice[0]) == msgspec.json.encode(twice[1])


def test_day_with_our_policy_loses_no_job_and_keeps_the_quota():
    (day,) = cluster_days.days(12, [5])
    assert day.now["completion"] == 1
    assert all(one.final.cpu <= 200 * (1 + 1e-9) for one in day.after.outcomes)


def test_unknown_paper_is_named(capsys):
    assert app.main(["reproduce", "dlrover"]) == 2
    assert "Did you mean 'dlrover-rm'" in capsys.readouterr().err


@pytest.mark.soak
def test_day_of_2000_jobs_simulates_in_under_a_minute_of_one_core(capsys):
    assert app.main(["simulate", "--policy", "springtide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["systems"]["springtide"]["seconds"] < 60
