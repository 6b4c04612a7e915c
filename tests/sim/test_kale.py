"""`springtide reproduce kale`: virtual days lose no sample, and its rows hold."""

import csv
import datetime
import json

import numpy as np
import pytest

from springtide import errors
from springtide.cli import app
from springtide.domain.spec.online_job import OnlineRules
from springtide.planning.online.decision import ChangeEffect
from springtide_lab.reproduce.kale import auc, comparison, reproduction, rows, schemes, world
from springtide_lab.reproduce.kale.comparison import OURS, Compared
from springtide_lab.reproduce.kale.schemes import Clairvoyant, Ours, Outlooks
from springtide_lab.reproduce.kale.world import CAPACITY

SLO_S = 1200.0


def steady(rate, steps=240):
    return np.full((1, steps), float(rate))


def run(rates, scheme, *, workers=4, doing=comparison.A):
    return world.run(rates, scheme, workers=np.array([workers]), capacity=CAPACITY, doing=doing)


def test_arrived_samples_are_trained_or_waiting_and_lag_is_the_oldest_age():
    done = run(steady(CAPACITY[4] / 2), lambda seen: np.array([4 if seen.tick < 40 else 5]))
    assert (np.diff(done.trained[:, 0]) >= 0).all() and (done.trained[:, 0] <= done.arrived[0] + 1e-6).all()
    lag = done.lag_s(0)
    assert (lag[:40] == 0).all() and lag[79] == pytest.approx(600.0), "ten minutes of pause: the oldest is as old"
    assert done.down[:, 0].sum() * world.TICK_S == 600.0 and lag[-1] == 0
    kept = done.kept(0, after=0, slo_s=300.0)
    assert kept.down_min == 10 and kept.worker_hours == pytest.approx((40 * 4 + 200 * 5) / 240)
    catches_up_s = 600 * (CAPACITY[4] / 2) / (CAPACITY[5] - CAPACITY[4] / 2)
    assert kept.lag_min == pytest.approx((600 + catches_up_s) * 600 / 2 / 3600, rel=0.05)


def test_live_changes_pause_no_worker_and_new_ones_train_after_a_minute():
    done = run(steady(CAPACITY[4]), lambda seen: np.array([8]), doing=ChangeEffect(0.0, 60.0))
    assert done.down.sum() == 0 and done.lag_s(0).max() == 0
    done = run(steady(CAPACITY[6]), lambda seen: np.array([8]), doing=ChangeEffect(0.0, 60.0))
    assert done.trained[4, 0] == pytest.approx(CAPACITY[4] * 60) and done.lag_s(0)[-1] == 0


def test_papers_day_is_scaled_to_28_workers_with_weeks_of_history():
    day, again, other = world.paper(3), world.paper(3), world.paper(4)
    assert (day.rates == again.rates).all() and (day.rates != other.rates).any()
    measured = day.rates[day.warm :]
    assert len(measured) == 5760 and len(day.past) == world.WEEKS
    assert np.searchsorted(CAPACITY, measured.max(), side="right") == 28
    ratios = [world.paper(seed).rates for seed in range(10)]
    assert 6 < np.median([one.max() / one.min() for one in ratios]) < 9


def lines(days=30, step_min=30):
    start = datetime.datetime(2014, 7, 1, 6)
    for place in range(days * 24 * 60 // step_min):
        at = start + datetime.timedelta(minutes=place * step_min)
        yield at.isoformat(sep=" "), 1000 + 800 * np.sin((at.hour + at.minute / 60) / 24 * 2 * np.pi) + at.weekday() * 9


def write(path, rows_of):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("timestamp", "value"), *rows_of])
    return path


def test_trace_begins_at_midnight_and_gives_days_with_history(tmp_path):
    trace = world.read(write(tmp_path / "taxis.csv", lines()))
    assert trace.step_s == 1800 and list(trace.days) == list(range(14, 29))
    day = trace.drawn(3)[0]
    assert len(day.rates) == 5760 + day.warm and np.argmax(day.steps[world.WARM :]) == pytest.approx(36, abs=3)
    assert len({one.name for one in trace.drawn(15)}) == 15
    fine = world.read(write(tmp_path / "fine.csv", lines(days=17, step_min=5)))
    assert fine.step_s == 300 and len(fine.day(14).steps) == 156


def test_missing_line_shifts_no_day(tmp_path):
    whole = list(lines())
    one, other = (
        world.read(write(tmp_path / name, some))
        for name, some in (("a.csv", whole), ("b.csv", whole[:99] + whole[100:]))
    )
    assert len(one.values) == len(other.values) and one.values[200:] == pytest.approx(other.values[200:])


def test_invalid_traces_are_reported(tmp_path):
    for name, rows_of in (("few", list(lines(days=3))), ("words", [("now", "much")]), ("odd", list(lines(step_min=7)))):
        with pytest.raises(errors.BadInput, match=f"--trace .*{name}.csv"):
            world.read(write(tmp_path / f"{name}.csv", rows_of))
    with pytest.raises(errors.MissingFile):
        world.read(tmp_path / "none.csv")
    with pytest.raises(errors.MissingFile, match=r"no \.csv file"):
        (tmp_path / "empty").mkdir()
        reproduction.found_traces(str(tmp_path / "empty"))
    assert [path.name for path in reproduction.found_traces(str(tmp_path))] == ["few.csv", "odd.csv", "words.csv"]


def test_traces_are_found_in_a_folder_beside_this_one(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert reproduction.found_traces(None) == ()
    (tmp_path / "beside/data/traces").mkdir(parents=True)
    (tmp_path / "beside/data/traces/one.csv").touch()
    assert [path.name for path in reproduction.found_traces(None)] == ["one.csv"]


def test_best_setting_is_the_cheapest_within_the_slo_or_the_least_violating():
    figures = np.array([[0.05, 9, 9, 300.0], [0.02, 9, 9, 420.0], [0.0, 1, 1, 600.0], [0.026, 9, 9, 400.0]])
    assert comparison.best(figures) == 3
    assert comparison.best(figures + np.array([0.5, 0, 0, 0])) == 2


@pytest.fixture(scope="module")
def days():
    return [world.paper(seed) for seed in range(2)]


def test_our_scheme_keeps_the_slo_with_nearly_clairvoyant_worker_hours(days):
    rules = OnlineRules(most=world.MOST, pause_s=600.0, period_s=1800.0)
    figures = {}
    for kind in (Outlooks, Clairvoyant):
        rates = np.asarray([day.rates for day in days])
        ours = Ours([kind(day) for day in days], rules)
        done = world.run(rates, ours, workers=world.start(days), capacity=CAPACITY, doing=comparison.A)
        figures[kind] = comparison.figures(done, range(2), days[0].warm).mean(axis=0)
    violation, lag_min, down_min, hours = figures[Outlooks]
    assert violation == 0 and down_min <= 100 and lag_min < 3000
    assert figures[Clairvoyant][3] * 0.95 < hours < figures[Clairvoyant][3] * 1.15 < 0.7 * 672


@pytest.mark.parametrize("scheme", schemes.GRIDS)
def test_settings_run_together_match_single_runs(scheme, days):
    grid = comparison.thinned(schemes.GRIDS[scheme][1], 3)
    part = [day.first(4) for day in days]
    outlooks = [Outlooks(day) for day in days]
    together = comparison.run(scheme, grid, part, outlooks, comparison.A)
    alone = comparison.run(scheme, grid[1:2], part[1:], outlooks[1:], comparison.A)
    assert (together.workers[:, 4] == alone.workers[:, 0]).all()
    assert ((together.workers >= 1) & (together.workers <= world.MOST)).all()


def test_model_is_worse_the_longer_it_lags_behind_a_drifting_truth():
    curve = auc.against_lag(0, auc.QUICK)
    assert curve[0] > curve[4] > curve[-1] and curve[0] > 0.65
    assert auc.of(np.zeros(4), curve) == curve[0] > auc.of(np.full(4, 3600.0), curve)


def comparison_of(name, ours, hpa):
    figures = {
        ("A", OURS): np.tile(ours, (3, 1)),
        ("A", "HPA"): np.tile(hpa, (3, 1)),
        ("A", "Kale"): np.tile(hpa, (3, 1)),
        ("A", comparison.CLAIRVOYANT): np.tile(ours, (3, 1)),
        ("B", OURS): np.tile(ours, (3, 1)) * (1, 1, 0, 1),
        ("B", "HPA"): np.tile(hpa, (3, 1)),
    }
    tuned = comparison.TunedScheme(scheme="", settings=None, tried=1, figures=np.asarray([hpa]))
    return Compared(
        name=name,
        days=3,
        figures=figures,
        tuned={("A", scheme): tuned for scheme in ("HPA", "Kale", "Madu")},
        on_tuning_days={"A": np.tile(ours, (3, 1))},
    )


def test_goals_are_judged_by_measured_figures():
    good = rows.goals(comparison_of(rows.PAPERS_SHAPE, np.array([0.0, 300, 60, 400]), np.array([0.01, 1000, 100, 450])))
    assert all(row.met is not False for row in good) and sum(row.met is True for row in good) == 10
    bad = rows.goals(comparison_of(rows.PAPERS_SHAPE, np.array([0.03, 400, 80, 440]), np.array([0.01, 1000, 100, 450])))
    missed = [row.what for row in bad if row.met is False]
    assert missed == [
        "ours: violation, %",
        "ours / HPA: lag",
        "ours / HPA: downtime",
        "ours / HPA: worker-hours",
        "ours / Kale: violation",
    ]
    other = rows.goals(comparison_of("wc98", np.array([0.0, 1001, 60, 400]), np.array([0.0, 1000, 100, 450])))
    assert [row.met for row in other][:4] == [True, False, True, True], "nothing by nothing is no worse"


@pytest.mark.soak
def test_tiny_version_prints_and_draws(capsys, tmp_path):
    assert app.main(["reproduce", "herald", "--trace", "x.csv"]) == 2
    assert "springtide reproduce goldminer and kale" in capsys.readouterr().err
    assert app.main(["reproduce", "kale", "--quick", "--json", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out[:-1])) <= 80
    said = json.loads(out[-1])
    assert said["reproduction"] == "kale" and said["quick"]
    keys = {"figure", "what", "paper", "ours", "goal", "met", "seeds", "spread"}
    assert all(keys <= set(one) for one in said["rows"])
    by = {(one["figure"], one["what"]): one for one in said["rows"]}
    assert by["A paper's shape", "Kale: downtime, min"]["paper"] == 109
    assert by["A paper's shape", "Adequate: worker-hours"]["ours"] == pytest.approx(28 * 6)
    assert by["goal B paper's shape", "ours: downtime, min"]["ours"] == 0
    for name in ("003-fig-1", "a-paper-s-shape", "fig-7"):
        assert (tmp_path / f"kale-{name}.png").stat().st_size > 1000
