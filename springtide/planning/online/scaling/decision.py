"""Pure. Decides how many workers an online job should have now, and why.

In: an `OnlineView` (forecast, backlog, capacity) and `OnlineRules`. Out: a `Scaling`. The master (for real jobs) and
the simulator (`springtide reproduce kale`) call this when `due` returns True. Both apply only the first step of the
plan and then plan again.

Kale plans the fewest workers that keep up, and smooths the plan (min_workers.py). Here, a change pays for its pause. So
the cheapest plan has few changes and makes them early (horizon.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.data.online_view import OnlineRules, OnlineView, Scaling, TrafficOutlook
from springtide.planning.online.scaling import horizon

BELIEVED = (0.85, 0.15)  # weights of the mean and the high end of an outlook in the expected cost
SATURATED = 0.95  # utilization above which workers have no reserve
WRONG = 1.2  # ratio of arrivals to the outlook above which, with samples waiting, the outlook is wrong
WAITS = 0.5  # share of the SLO lag above which the outlook is checked
KNOWN_S = 3600.0  # seconds until the real scenario is known; the level is judged by the last 40 min
SURPRISE_H = 10.0  # hours of the mean needed workers: largest cost of having planned for too little
# distance of the high end from the mean, relative to the mean, at which that cost holds; a larger distance is noticed
# sooner
PLAIN = 0.4
STEEPER = 1.5  # exponent of the lag price on broad days; with 1, taxi traffic gets too much lag
WORTH = (0.7, 2.5)  # limits on the factor of the lag price
FULL = 0.999  # share of the largest capacity above which no number of workers keeps up


def due(view: OnlineView, rules: OnlineRules, *, planned_at: float) -> bool:
    """Return True if a new decision is due: a period has passed, or traffic exceeds the outlook."""
    since = view.at - planned_at
    return not view.pausing and (since >= rules.period_s or (since >= rules.period_s / 10 and _surprised(view, rules)))


def decide(view: OnlineView, rules: OnlineRules) -> Scaling:
    return decide_all([view], rules)[0]


def decide_all(views: Sequence[OnlineView], rules: OnlineRules) -> list[Scaling]:
    """Decide for many jobs together, which is faster than one by one."""
    said = [_at_once(view, rules) for view in views]
    believed = [_as_it_is(view) if _surprised(view, rules) else view.outlook for view in views]
    for place, (view, outlook) in enumerate(zip(views, believed, strict=True)):
        if said[place] is None and (alert := _alert(view, outlook, rules)):
            most = max(rules.fewest, int(np.asarray(view.capacity[: rules.most + 1]).argmax()))
            said[place] = Scaling(workers=most, why=alert, plan=(most,), alert=alert)
    alike: dict[tuple[float, int], list[int]] = {}
    for place, one in enumerate(said):
        if one is None:
            outlook = believed[place]
            steps = max(1, min(len(outlook.mean), round(rules.horizon_s / outlook.step_s)))
            alike.setdefault((outlook.step_s, steps), []).append(place)
    for (step_s, steps), places in alike.items():
        found = _best([views[place] for place in places], [believed[place] for place in places], step_s, steps, rules)
        for place, best in zip(places, found, strict=True):
            plan = tuple(map(int, best.workers))
            why = _why(views[place], believed[place], plan, believed[place] is not views[place].outlook)
            said[place] = Scaling(workers=plan[0], why=why, plan=plan)
    return [one for one in said if one is not None]


def _at_once(view: OnlineView, rules: OnlineRules) -> Scaling | None:
    if len(view.capacity) <= rules.most:
        raise errors.BadInput(
            f"capacity is known for 0 to {len(view.capacity) - 1} workers: wanted it up to the most, {rules.most}"
        )
    if view.pausing:
        return Scaling(workers=view.workers, why=f"a change to {view.workers} workers is under way")
    bounded = min(max(view.workers, rules.fewest), rules.most)
    if bounded != view.workers:
        return Scaling(workers=bounded, why=f"{view.workers} workers are not {rules.fewest} to {rules.most}")
    return None


def _surprised(view: OnlineView, rules: OnlineRules) -> bool:
    """Return True if samples wait because traffic far exceeds the outlook (Kale's thresholds on lag and
    utilization)."""
    waits = view.lag_s > WAITS * rules.slo_lag_s and view.utilization > SATURATED
    return waits and view.arrivals > WRONG * view.outlook.mean[0]


def _as_it_is(view: OnlineView) -> TrafficOutlook:
    """Return an outlook in which current traffic continues, or the old outlook where it is higher."""
    mean = tuple(max(view.arrivals, one) for one in view.outlook.mean)
    high = tuple(max(one, other) for one, other in zip(mean, view.outlook.high, strict=True))
    return replace(view.outlook, mean=mean, high=high, why="what comes now is taken to go on")


def needs(capacity: NDArray[np.float64], traffic: Sequence[float]) -> NDArray[np.int64]:
    """Return, for each traffic, the fewest workers that train more than arrives (Eqn 10), or those with the highest
    capacity."""
    most = int(capacity.argmax())
    return np.minimum(np.searchsorted(np.maximum.accumulate(capacity[: most + 1]), traffic, side="right"), most)


def lag_worth(mean: float, peak: float, above: float) -> float:
    """Return the factor on the lag price, relative to a day whose mean need is half its peak.

    Lag is accepted in return for the workers that scaling saves against the peak. Where scaling saves little, lag costs
    more. `above` is the distance of the high end from the mean. If it is large, the peak is uncertain and the factor is
    smaller.
    """
    return float(np.clip((mean / max(peak - mean, 1e-9)) ** STEEPER / max(above / PLAIN, 1.0) ** 2, *WORTH))


def _best(
    views: Sequence[OnlineView], outlooks: Sequence[TrafficOutlook], step_s: float, steps: int, rules: OnlineRules
) -> list[horizon.WorkerPlan]:
    capacity = np.asarray([view.capacity[: rules.most + 1] for view in views])
    needed = [needs(here, outlook.mean) for here, outlook in zip(capacity, outlooks, strict=True)]
    usual = np.maximum([one.mean() for one in needed], rules.fewest)
    hour = usual * (3600.0 / step_s)
    above = _above(outlooks)
    worth = [lag_worth(here.mean(), here.max(), one) for here, one in zip(needed, above, strict=True)]
    prices = horizon.HorizonPrices(
        slo_s=rules.slo_lag_s,
        lag=rules.lag_price * usual * worth,
        late=rules.late_price * usual,
        change=rules.change_price * hour,
        again=SURPRISE_H * hour * PLAIN / above,
        known=round(KNOWN_S / step_s),
    )
    jobs = horizon.HorizonJobs(
        step_s=step_s,
        traffic=np.asarray([(outlook.mean[:steps], outlook.high[:steps]) for outlook in outlooks]),
        shares=np.asarray(BELIEVED),
        workers=np.asarray([view.workers for view in views]),
        backlog=np.asarray([view.backlog for view in views]),
        capacity=capacity,
    )
    return horizon.plan(
        jobs, fewest=rules.fewest, prices=prices, doing=horizon.ChangeEffect(rules.pause_s, rules.start_s)
    )


def _above(outlooks: Sequence[TrafficOutlook]) -> NDArray[np.float64]:
    """Return the largest distance of the high end from the mean, relative to the mean."""
    return np.asarray(
        [max(float(np.max(np.divide(one.high, np.maximum(one.mean, 1e-9)))) - 1, 1e-9) for one in outlooks]
    )


def _alert(view: OnlineView, outlook: TrafficOutlook, rules: OnlineRules) -> str:
    """Return an alert if no number of workers keeps up; otherwise an empty string."""
    capacity = view.capacity[: rules.most + 1]
    most = max(capacity)
    soon = max(1, round(3600.0 / outlook.step_s))
    expected = sum(outlook.mean[:soon]) / len(outlook.mean[:soon])
    if max(view.arrivals, expected) <= most * FULL:
        return ""
    what = (
        f"{view.arrivals:,.0f} samples/s come"
        if view.arrivals > most * FULL
        else f"{expected:,.0f} samples/s will come"
    )
    return f"cannot keep up: {what}, {capacity.index(most)} workers train {most:,.0f} at most"


def _why(view: OnlineView, outlook: TrafficOutlook, plan: tuple[int, ...], fallback: bool) -> str:
    ahead = f"{view.arrivals:,.0f} samples/s come, {max(outlook.mean[: len(plan)]):,.0f} at most are expected"
    waits = f", the oldest has waited {view.lag_s / 60:.0f} min" if view.lag_s >= 60 else ""
    said = f"{ahead}{waits} ({outlook.why})" if outlook.why else f"{ahead}{waits}"
    if fallback:
        said = f"the forecast was wrong: {said}"
    if plan[0] != view.workers:
        return f"from {view.workers} to {plan[0]} workers: {said}"
    change = next((step for step, one in enumerate(plan) if one != plan[0]), None)
    if change is None:
        return f"{plan[0]} workers stay: {said}"
    minutes = change * outlook.step_s / 60
    return f"{plan[0]} workers stay, {plan[change]} planned in {minutes:.0f} min: {said}"
