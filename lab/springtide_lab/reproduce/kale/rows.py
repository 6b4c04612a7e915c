"""Compute the rows of Kale's Table 3, goals, Fig. 1 and forecast errors.

In: results of `comparison`. Out: `Row`s. A figure is the mean over days, its spread the 95% interval of that mean.
Ratios are ratios of means with a 95% bootstrap interval; both schemes have the same days.
"""

from collections.abc import Sequence

import numpy as np

from springtide.planning.online import seasonal
from springtide.planning.online.traffic import PastTraffic
from springtide_lab.reproduce.kale.auc import LAGS_MIN
from springtide_lab.reproduce.kale.comparison import ADEQUATE, CLAIRVOYANT, OURS, Compared
from springtide_lab.reproduce.kale.world import DAY, STEP_S, WARM, Array, TrafficDay
from springtide_lab.reproduce.report import EQUAL, NOT_IN_TEXT, Row, row_of

TABLE_3: dict[str, tuple[float, float, float, float, float]] = {
    ADEQUATE: (0.0, 0.0, 0.0, 672.0, 95.3),
    "HPA": (19.57, 7151.0, 163.0, 268.0, 95.1),
    "Autopilot": (5.49, 4420.0, 269.0, 303.0, 95.2),
    "Madu": (2.57, 2303.0, 190.0, 455.0, 95.3),
    "Kale": (2.60, 2204.0, 109.0, 242.0, 95.8),
}
"""The paper's violation in %, lag in min, downtime in min, GPU hours, AUC in %, for a load that it does not publish."""
METRICS = ("violation, %", "accumulated lag, min", "downtime, min", "worker-hours")
SHORT = ("violation", "lag", "downtime", "worker-hours")
SCHEMES = (ADEQUATE, "HPA", "KEDA", "Autopilot", "Madu", "Kale", OURS, CLAIRVOYANT)
PAPERS_SHAPE = "paper's shape"
TAXI = "taxi"
"""Part of the name of a trace to which the paper's goals apply."""
RESAMPLED = 1000
BEST = "best settings: the fewest worker-hours with at most 2.6% violation, on 5 other days of the same kind"
PAPERS = "the paper does not describe the load and cluster of its figures"


def mean_row(
    figure: str,
    what: str,
    paper: float | str,
    values: Sequence[float] | Array,
    *,
    goal: float | None = None,
    why: str = "",
) -> Row:
    """Return a row of a mean with its 95% interval; the goal is an upper limit."""
    known = np.asarray(values, dtype=float)
    middle = float(known.mean())
    half = 1.96 * float(known.std(ddof=1)) / len(known) ** 0.5 if len(known) > 1 else 0.0
    spread = (middle - half, middle + half)
    return row_of(figure, what, paper, middle, spread, seeds=len(known), goal=goal, better="lower", why=why)


def ratio_row(
    figure: str, what: str, paper: float | str, ours: Array, theirs: Array, *, goal: float | None, why: str = ""
) -> Row:
    """Return a row of a ratio of means with its 95% interval; 0 / 0 counts as 1."""
    draws = np.random.default_rng(0).integers(0, len(ours), (RESAMPLED, len(ours)))
    low, high = np.percentile(_ratio(ours[draws].mean(axis=1), theirs[draws].mean(axis=1)), (2.5, 97.5))
    middle = float(_ratio(np.asarray(ours.mean()), np.asarray(theirs.mean())))
    spread = (float(low), float(high))
    return row_of(figure, what, paper, middle, spread, seeds=len(ours), goal=goal, better="lower", why=why)


def _ratio(ours: Array, theirs: Array) -> Array:
    both = (ours <= EQUAL) & (theirs <= EQUAL)
    return np.asarray(np.where(both, 1.0, ours / np.maximum(theirs, EQUAL)))


def table(found: Compared) -> list[Row]:
    """Return four figures and the AUC of all schemes, for tables A and B."""
    rows = []
    for table_of in ("A", "B"):
        for scheme in SCHEMES:
            if (table_of, scheme) not in found.figures:
                continue
            figures = found.figures[table_of, scheme] * (100, 1, 1, 1)
            here = table_of == "A" and found.name == PAPERS_SHAPE and scheme in TABLE_3
            tuned = found.tuned.get((table_of, scheme))
            why = f"{scheme}, {found.name}: {_said(tuned.settings)}, of {tuned.tried} settings" if tuned else ""
            for place, metric in enumerate(METRICS):
                paper = TABLE_3[scheme][place] if here else "-"
                what = f"{scheme}{' live' if table_of == 'B' else ''}: {metric}"
                rows.append(mean_row(f"{table_of} {found.name}", what, paper, figures[:, place], why=why))
            auc = [100 * one for one in found.auc[table_of, scheme]]
            what = f"{scheme}{' live' if table_of == 'B' else ''}: AUC, %"
            rows.append(mean_row(f"{table_of} {found.name}", what, TABLE_3[scheme][4] if here else "-", auc))
    return rows


def _said(settings: object) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in settings._asdict().items())  # type: ignore[attr-defined]


def goals(found: Compared) -> list[Row]:
    """Return the goals: the paper's gains on its shape and on taxi traces, and no worse than HPA on other traces."""
    main = found.name == PAPERS_SHAPE or TAXI in found.name
    return [*(_main_goals(found) if main else _other_goals(found)), *_live_goals(found), *_others(found)]


def _main_goals(found: Compared) -> list[Row]:
    figure = f"goal A {found.name}"
    ours, hpa, kale = (found.figures["A", scheme] for scheme in (OURS, "HPA", "Kale"))
    clairvoyant = found.figures["A", CLAIRVOYANT]
    rows = [mean_row(figure, "ours: violation, %", 2.6, 100 * ours[:, 0], goal=2.6, why=f"{BEST}; {PAPERS}")]
    for place, paper, goal in ((1, 0.308, 0.31), (2, 0.669, 0.67), (3, 0.903, 0.9)):
        rows.append(ratio_row(figure, f"ours / HPA: {SHORT[place]}", paper, ours[:, place], hpa[:, place], goal=goal))
    rows.append(
        ratio_row(
            figure,
            "ours / clairvoyant: worker-hours",
            "-",
            ours[:, 3],
            clairvoyant[:, 3],
            goal=1.15,
            why="clairvoyant: the same planner and prices, with the traffic known in advance",
        )
    )
    for place, name in enumerate(SHORT):
        rows.append(ratio_row(figure, f"ours / Kale: {name}", "-", ours[:, place], kale[:, place], goal=1.0))
    return rows


def _other_goals(found: Compared) -> list[Row]:
    ours, hpa = found.figures["A", OURS], found.figures["A", "HPA"]
    return [
        ratio_row(f"goal A {found.name}", f"ours / HPA: {name}", "-", ours[:, place], hpa[:, place], goal=1.0)
        for place, name in enumerate(SHORT)
    ]


def _live_goals(found: Compared) -> list[Row]:
    ours, hpa = found.figures["B", OURS], found.figures["B", "HPA"]
    why = "B: changes are live: no worker stops, and new workers train after a minute; HPA's settings are "
    "chosen again"
    figure = f"goal B {found.name}"
    rows = [mean_row(figure, "ours: downtime, min", 109.0, ours[:, 2], goal=0.0, why=why)]
    for place in (0, 1, 3):
        rows.append(ratio_row(figure, f"ours / HPA: {SHORT[place]}", "-", ours[:, place], hpa[:, place], goal=None))
    return rows


def _others(found: Compared) -> list[Row]:
    mine = found.on_tuning_days["A"].mean(axis=0)
    rows = []
    for scheme in ("HPA", "Kale", "Madu"):
        tuned = found.tuned["A", scheme]
        both = (tuned.figures[:, 1] <= mine[1]) & (tuned.figures[:, 3] <= mine[3])
        why = "on the days on which settings are chosen; a setting with both would be better than ours"
        what = f"settings of {scheme} with less lag and fewer hours than ours"
        rows.append(
            Row(
                figure=f"all {found.name}",
                what=what,
                paper="-",
                ours=float(both.sum()),
                why=why,
                seeds=len(found.on_tuning_days["A"]),
            )
        )
    return rows


def lag_and_auc(curves: Sequence[Sequence[float]]) -> list[Row]:
    """Return Fig. 1: AUC by lag."""
    why = "a linear model on a generated click stream whose true weights drift; the speed of the drift is our "
    "choice (auc.py)"
    return [
        mean_row(
            "003 Fig. 1",
            f"AUC at a lag of {lag} min, %",
            NOT_IN_TEXT,
            [100 * curve[place] for curve in curves],
            why=why,
        )
        for place, lag in enumerate(LAGS_MIN)
    ]


def forecasts(name: str, days: Sequence[TrafficDay]) -> list[Row]:
    """Return the errors of forecasts one day ahead, compared with the rule tomorrow = today."""
    said: dict[str, list[float]] = {"the default forecaster": [], "tomorrow = today": []}
    for day in days:
        came = day.steps[WARM:]
        history = PastTraffic(step_s=STEP_S, values=np.concatenate([day.past, day.steps[:WARM]]))
        for which, mean in (
            ("the default forecaster", seasonal.forecast(history, len(came)).mean),
            ("tomorrow = today", history.values[-DAY:][: len(came)]),
        ):
            said[which].append(float(np.abs(mean - came).sum() / max(came.sum(), 1e-9)))
    return [
        mean_row(
            "forecast",
            f"{name}: {which} is off by, %",
            NOT_IN_TEXT,
            [100 * value for value in values],
            goal=100 * float(np.mean(said["tomorrow = today"])) if which.startswith("the default") else None,
        )
        for which, values in said.items()
    ]
