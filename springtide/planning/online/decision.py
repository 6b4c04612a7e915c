"""Pure. Decides how many workers an online job should have now, and why.

`plan` finds the cheapest plan up to the planning horizon. Each change of the number of workers has a cost, because the
job pauses. The cheapest plan therefore has few changes and makes them early. Only the first step of the plan is
applied.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.spec.online_job import OnlineRules, OnlineView, Scaling, TrafficOutlook

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
# A stretch is a period with a constant number of workers. The search tracks stretches younger than this many steps one
# by one. Doubling the number does not change the plans.
YOUNG = 8
# share of the capacity that is assumed to be free to work off the backlog, when the cost of the backlog after the
# current step is computed
DRAINS = 0.3
# share of the SLO lag; if the lag at the end of a step exceeds it, part of the next step violates the SLO
NEARLY = 0.9


class HorizonPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in workers, so that costs are in worker-steps."""

    slo_s: float
    lag: float
    """Price of a lag of `slo_s`; the price of any other lag is proportional."""
    late: float
    """Additional price of a lag that exceeds `slo_s`."""
    change: float
    """Cost of one change, in worker-steps."""
    again: float = np.inf
    """In any scenario, a plan's cost counts as at most this many worker-steps above the cost of the best plan for the
    scenario. The reason: once the job recognizes the scenario, it switches to the scenario's best plan.
    """
    known: int = 0
    """Number of steps after which the real scenario is known."""


class ChangeEffect(NamedTuple):
    """Effect of a change on the job."""

    pause_s: float
    start_s: float
    """Seconds until new workers train, if the job does not pause for the change."""


class Horizon(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic that a job expects, in equal time steps, and the job's state before the first step."""

    step_s: float
    traffic: Array
    """Samples per second that may arrive, as an array [scenarios, steps]."""
    shares: Array
    """Probability of each scenario; the probabilities sum to 1."""
    workers: int
    backlog: float
    """Number of samples that wait."""
    capacity: Array
    """Samples per second by number of workers, for 0 to `most` workers."""


class WorkerPlan(NamedTuple):
    """Planned number of workers for each step, with the expected cost."""

    workers: Counts
    cost: float


def plan(ahead: Horizon, *, fewest: int, prices: HorizonPrices, doing: ChangeEffect) -> WorkerPlan:
    """Return the cheapest sequence of stretches, starting with the current number of workers and the current
    backlog."""
    counts, rates = np.arange(fewest, len(ahead.capacity)), ahead.capacity[fewest:]
    usable = _usable(doing, ahead.step_s)
    young, numbers, begin = len(usable), len(counts), ahead.workers - fewest
    seconds = (1 / np.maximum(ahead.traffic, 1e-9))[..., None, None]  # seconds of lag per waiting sample
    arrive = (ahead.traffic * ahead.step_s)[..., None, None]
    share = ahead.shares[:, None, None]
    by_lag = prices.lag / (2 * prices.slo_s)
    later = by_lag / (DRAINS * ahead.step_s)

    # One row for each of the last `young` steps, with the stretches that began in that step. Row 0 has the cheapest
    # older stretch for each number of workers.
    waits = np.zeros((len(ahead.traffic), young + 1, numbers))
    cost = np.full(waits.shape, np.inf)
    begun = np.full((young + 1, numbers), -1)
    waits[:, 0, begin] = ahead.backlog
    cost[:, 0, begin] = 0.0
    takes = np.tile(rates * ahead.step_s, (young + 1, 1))
    # for each step: the start and the place of the stretch that precedes each new stretch
    came_from: list[tuple[int, int]] = []
    lag = waits * seconds[:, 0]
    for step in range(arrive.shape[1]):
        seen = (share * (cost + lag**2 * later)).sum(axis=0)
        row, place = divmod(int(seen.argmin()), numbers)
        came_from.append((int(begun[row, place]), place))
        so_far, waiting = cost[:, row, place], waits[:, row, place]
        newest = step % young + 1  # the row of the oldest recent stretch, which counts as settled from now on
        settled = seen[newest] < seen[0]
        begun[0] = np.where(settled, begun[newest], begun[0])
        for weight in (cost, waits):
            weight[:, 0] = np.where(settled, weight[:, newest], weight[:, 0])
        waits[:, newest] = waiting[:, None]
        cost[:, newest], begun[newest] = (so_far + prices.change)[:, None], step
        cost[:, newest, place] = np.inf
        takes[1:] = rates * usable[(step - np.arange(young)) % young, None]
        if doing.pause_s == 0:
            takes[newest] += np.minimum(rates, rates[place]) * (ahead.step_s - usable[0])
        lag = waits * seconds[:, step]
        waits = np.maximum(waits + arrive[:, step] - takes, 0)
        lag_after = waits * seconds[:, step]
        cost += counts + (lag + lag_after) * by_lag + (lag_after > NEARLY * prices.slo_s) * prices.late
        lag = waits * seconds[:, min(step + 1, arrive.shape[1] - 1)]
        if step + 1 >= prices.known:
            _bound(cost, waits, lag, later, prices.again)
    seen = (share * (cost + lag**2 * later)).sum(axis=0)
    row, place = divmod(int(seen.argmin()), numbers)
    return WorkerPlan(_chain(int(begun[row, place]), place, came_from, counts), float(seen[row, place]))


def _bound(cost: Array, waits: Array, lag: Array, later: float, again: float) -> None:
    """In every scenario except the first, limit the cost to the cost of the best sequence plus one change."""
    whole = (cost + lag**2 * later)[1:]
    if not whole.size:
        return
    most = whole.min(axis=(1, 2), keepdims=True) + again
    dear = (whole > most) & np.isfinite(whole)
    cost[1:] = np.where(dear, most, cost[1:])
    for price in (waits, lag):
        price[1:][dear] = 0.0


def _usable(doing: ChangeEffect, step_s: float) -> Array:
    """Return the number of seconds of training in each step after a change, until the new workers train fully."""
    young = max(YOUNG, int(np.ceil(doing.pause_s / step_s)) + 1)
    lost = doing.pause_s or min(doing.start_s, step_s)
    return np.clip((np.arange(young) + 1) * step_s - lost, 0, step_s)


def _chain(start: int, place: int, came_from: list[tuple[int, int]], counts: Counts) -> Counts:
    end = len(came_from)
    workers = np.zeros(end, dtype=np.int64)
    while True:
        workers[max(start, 0) : end] = counts[place]
        if start < 0:
            return workers
        end = start
        start, place = came_from[start]


BELIEVED = (0.85, 0.15)  # weights of the mean and of the high end of a forecast in the expected cost
SATURATED = 0.95  # workers have no reserve if their utilization is above this value
WRONG = 1.2  # a forecast counts as wrong if samples wait and arrivals exceed the forecast by this factor
WAITS = 0.5  # the forecast is checked if the lag exceeds this share of the SLO lag
KNOWN_S = 3600.0  # seconds until the real scenario is known; the level of the traffic follows from the last 40 minutes
# limit on the cost of a plan for too little traffic, in hours of the mean number of needed workers
SURPRISE_H = 10.0
# this limit applies if the high end of the forecast exceeds the mean by this share; larger differences are recognized
# sooner
PLAIN = 0.4
# exponent of the price of lag on days with broad peaks; with an exponent of 1, taxi traffic would get too much lag
STEEPER = 1.5
WORTH = (0.7, 2.5)  # smallest and largest factor on the price of lag
FULL = 0.999  # if traffic exceeds this share of the largest capacity, no number of workers can keep up


def due(view: OnlineView, rules: OnlineRules, *, planned_at: float) -> bool:
    since = view.at - planned_at
    return not view.pausing and (since >= rules.period_s or (since >= rules.period_s / 10 and _surprised(view, rules)))


def decide(view: OnlineView, rules: OnlineRules) -> Scaling:
    if (urgent := _at_once(view, rules)) is not None:
        return urgent
    surprised = _surprised(view, rules)
    outlook = _as_it_is(view) if surprised else view.outlook
    if alert := _alert(view, outlook, rules):
        most = max(rules.fewest, int(np.asarray(view.capacity[: rules.most + 1]).argmax()))
        return Scaling(workers=most, why=alert, plan=(most,), alert=alert)
    wanted = tuple(map(int, _best(view, outlook, rules).workers))
    return Scaling(workers=wanted[0], why=_why(view, outlook, wanted, surprised), plan=wanted)


def _at_once(view: OnlineView, rules: OnlineRules) -> Scaling | None:
    if len(view.capacity) <= rules.most:
        raise errors.BadInput(
            f"capacity is known for 0 to {len(view.capacity) - 1} workers: expected values up to {rules.most} workers"
        )
    if view.pausing:
        return Scaling(workers=view.workers, why=f"a change to {view.workers} workers is under way")
    bounded = min(max(view.workers, rules.fewest), rules.most)
    if bounded != view.workers:
        return Scaling(workers=bounded, why=f"{view.workers} workers are not {rules.fewest} to {rules.most}")
    return None


def _surprised(view: OnlineView, rules: OnlineRules) -> bool:
    """Return True if samples wait because traffic is far above the forecast (Kale's thresholds)."""
    waits = view.lag_s > WAITS * rules.slo_lag_s and view.utilization > SATURATED
    return waits and view.arrivals > WRONG * view.outlook.mean[0]


def _as_it_is(view: OnlineView) -> TrafficOutlook:
    """Return a forecast in which the current traffic continues, or the old forecast at times when it is higher."""
    mean = tuple(max(view.arrivals, expected) for expected in view.outlook.mean)
    high = tuple(max(expected, other) for expected, other in zip(mean, view.outlook.high, strict=True))
    return replace(view.outlook, mean=mean, high=high, why="the current traffic is assumed to continue")


def needs(capacity: NDArray[np.float64], traffic: Sequence[float]) -> NDArray[np.int64]:
    """Return, for each traffic, the smallest number of workers that trains samples faster than they arrive (Eqn 10). If
    no number of workers is enough, return the number with the highest capacity.
    """
    most = int(capacity.argmax())
    return np.minimum(np.searchsorted(np.maximum.accumulate(capacity[: most + 1]), traffic, side="right"), most)


def lag_worth(mean: float, peak: float, above: float) -> float:
    """Return the factor on the price of lag. The factor is 1 for a day on which the mean need is half the peak need.
    The more workers scaling can save compared with the peak, the smaller the factor, so that more lag is accepted.
    `above` is the distance between the high end of the forecast and its mean. A large difference means that the peak is
    uncertain, and reduces the factor.
    """
    return float(np.clip((mean / max(peak - mean, 1e-9)) ** STEEPER / max(above / PLAIN, 1.0) ** 2, *WORTH))


def _best(view: OnlineView, outlook: TrafficOutlook, rules: OnlineRules) -> WorkerPlan:
    capacity = np.asarray(view.capacity[: rules.most + 1])
    steps = max(1, min(len(outlook.mean), round(rules.horizon_s / outlook.step_s)))
    needed = needs(capacity, outlook.mean)
    usual = max(float(needed.mean()), rules.fewest)
    hour = usual * (3600.0 / outlook.step_s)
    above = max(float(np.max(np.divide(outlook.high, np.maximum(outlook.mean, 1e-9)))) - 1, 1e-9)
    prices = HorizonPrices(
        slo_s=rules.slo_lag_s,
        lag=rules.lag_price * usual * lag_worth(needed.mean(), needed.max(), above),
        late=rules.late_price * usual,
        change=rules.change_price * hour,
        again=SURPRISE_H * hour * PLAIN / above,
        known=round(KNOWN_S / outlook.step_s),
    )
    ahead = Horizon(
        step_s=outlook.step_s,
        traffic=np.asarray((outlook.mean[:steps], outlook.high[:steps])),
        shares=np.asarray(BELIEVED),
        workers=view.workers,
        backlog=view.backlog,
        capacity=capacity,
    )
    return plan(ahead, fewest=rules.fewest, prices=prices, doing=ChangeEffect(rules.pause_s, rules.start_s))


def _alert(view: OnlineView, outlook: TrafficOutlook, rules: OnlineRules) -> str:
    capacity = view.capacity[: rules.most + 1]
    most = max(capacity)
    soon = max(1, round(3600.0 / outlook.step_s))
    expected = sum(outlook.mean[:soon]) / len(outlook.mean[:soon])
    if max(view.arrivals, expected) <= most * FULL:
        return ""
    what = (
        f"{view.arrivals:,.0f} samples/s come"
        if view.arrivals > most * FULL
        else f"{expected:,.0f} samples/s are expected"
    )
    return f"cannot keep up: {what}, {capacity.index(most)} workers train {most:,.0f} at most"


def _why(view: OnlineView, outlook: TrafficOutlook, plan: tuple[int, ...], fallback: bool) -> str:
    ahead = f"{view.arrivals:,.0f} samples/s come, {max(outlook.mean[: len(plan)]):,.0f} at most are expected"
    waits = f", the oldest has waited {view.lag_s / 60:.0f} min" if view.lag_s >= 60 else ""
    reason = f"{ahead}{waits} ({outlook.why})" if outlook.why else f"{ahead}{waits}"
    if fallback:
        reason = f"the forecast was wrong: {reason}"
    if plan[0] != view.workers:
        return f"from {view.workers} to {plan[0]} workers: {reason}"
    change = next((step for step, workers in enumerate(plan) if workers != plan[0]), None)
    if change is None:
        return f"{plan[0]} workers stay: {reason}"
    minutes = change * outlook.step_s / 60
    return f"{plan[0]} workers stay, {plan[change]} planned in {minutes:.0f} min: {reason}"
