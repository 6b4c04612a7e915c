"""Pure. Decides how many workers an online job should have now, and why.

`plan` finds the cheapest plan up to the horizon. Each change has a cost, because the job pauses, so the cheapest plan
has few changes and makes them early. Only its first step is applied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.spec.online_job import OnlineRules, OnlineView, Scaling, TrafficOutlook

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
# number of steps for which new stretches (periods with a constant number of workers) are tracked separately; 16 gives
# the same plans
YOUNG = 8
# assumed share of the capacity that is free to drain the backlog, for the cost of the backlog after the current step
DRAINS = 0.3
# share of the SLO lag: if the lag at the end of a step is above it, part of the next step violates the SLO
NEARLY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonPrices:
    """Prices by job, in workers, so that a cost is in worker-steps."""

    slo_s: float
    lag: Array
    """Price of a lag of `slo_s`; other lags in proportion."""
    late: Array
    """Additional price of a lag above `slo_s`."""
    change: Array
    """Price of one change, in worker-steps."""
    again: Array | None = None
    """Limit on the extra cost of a plan over the best plan for a scenario, in worker-steps; None for no limit. The
    limit exists because the job switches to that best plan once it recognizes the scenario."""
    known: int = 0
    """Steps after which the real scenario is known."""


class ChangeEffect(NamedTuple):
    """Effect of a change on the job."""

    pause_s: float
    start_s: float
    """Seconds until new workers train, if nothing pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonJobs:
    """Jobs to plan, in equal time steps."""

    step_s: float
    traffic: Array
    """[jobs, scenarios, steps]: samples per second that may arrive."""
    shares: Array
    """[scenarios]: probability of each scenario; the sum is 1."""
    workers: Counts
    """[jobs]: current workers."""
    backlog: Array
    """[jobs]: samples that wait."""
    capacity: Array
    """[jobs, most + 1]: samples per second by number of workers."""


class WorkerPlan(NamedTuple):
    """Planned workers of one job, with the expected cost."""

    workers: Counts
    cost: float


def plan(jobs: HorizonJobs, *, fewest: int, prices: HorizonPrices, doing: ChangeEffect) -> list[WorkerPlan]:
    """Return the cheapest chain of stretches for each job, from its current workers and backlog."""
    each = np.arange(len(jobs.workers))
    counts, rates = np.arange(fewest, jobs.capacity.shape[1]), jobs.capacity[:, None, fewest:]
    usable = _usable(doing, jobs.step_s)
    young, numbers = len(usable), len(counts)
    seconds = (1 / np.maximum(jobs.traffic, 1e-9))[..., None, None]  # seconds of lag per waiting sample
    arrive = (jobs.traffic * jobs.step_s)[..., None, None]
    share = jobs.shares[None, :, None, None]
    by_lag, late = (one[:, None, None, None] for one in (prices.lag / (2 * prices.slo_s), prices.late))
    ahead = by_lag / (DRAINS * jobs.step_s)

    # Row 0 holds the cheapest settled stretch of each number of workers. The other rows hold stretches begun in the
    # last steps.
    waits = np.zeros((len(each), jobs.traffic.shape[1], young + 1, numbers))
    cost = np.full(waits.shape, np.inf)
    begun = np.full((len(each), young + 1, numbers), -1)
    waits[each, :, 0, jobs.workers - fewest] = jobs.backlog[:, None]
    cost[each, :, 0, jobs.workers - fewest] = 0.0
    takes = np.repeat(rates * jobs.step_s, young + 1, axis=1)
    came_from: list[
        tuple[Counts, Counts]
    ] = []  # for each step: start and worker count of the stretch before each new stretch
    lag = waits * seconds[:, :, 0]
    for step in range(arrive.shape[2]):
        seen = (share * (cost + lag**2 * ahead)).sum(axis=1)
        row, place = np.divmod(seen.reshape(len(each), -1).argmin(axis=1), numbers)
        came_from.append((begun[each, row, place], place))
        so_far, waiting = cost[each, :, row, place], waits[each, :, row, place]
        newest = step % young + 1  # row of the oldest of the recent stretches, which now counts as settled
        settled = seen[:, newest] < seen[:, 0]
        begun[:, 0] = np.where(settled, begun[:, newest], begun[:, 0])
        for one in (cost, waits):
            one[:, :, 0] = np.where(settled[:, None], one[:, :, newest], one[:, :, 0])
        waits[:, :, newest] = waiting[..., None]
        cost[:, :, newest], begun[:, newest] = (so_far + prices.change[:, None])[..., None], step
        cost[each, :, newest, place] = np.inf
        takes[:, 1:] = rates * usable[(step - np.arange(young)) % young, None]
        if doing.pause_s == 0:
            slower = np.minimum(rates[:, 0], rates[each, 0, place][:, None])
            takes[:, newest] += slower * (jobs.step_s - usable[0])
        lag = waits * seconds[:, :, step]
        waits = np.maximum(waits + arrive[:, :, step] - takes[:, None], 0)
        lag_after = waits * seconds[:, :, step]
        cost += counts + (lag + lag_after) * by_lag + (lag_after > NEARLY * prices.slo_s) * late
        lag = waits * seconds[:, :, min(step + 1, arrive.shape[2] - 1)]
        if prices.again is not None and step + 1 >= prices.known:
            _bound(cost, waits, lag, ahead, prices.again)
    seen = (share * (cost + lag**2 * ahead)).sum(axis=1).reshape(len(each), -1)
    last = seen.argmin(axis=1)
    return [
        WorkerPlan(
            _chain(job, int(begun[job].ravel()[last[job]]), int(last[job]) % numbers, came_from, counts),
            float(seen[job, last[job]]),
        )
        for job in range(len(each))
    ]


def _bound(cost: Array, waits: Array, lag: Array, ahead: Array, again: Array) -> None:
    """Limit the cost in every scenario except the first to the cost of the best chain plus a change."""
    whole = (cost + lag**2 * ahead)[:, 1:]
    if not whole.size:
        return
    most = whole.min(axis=(2, 3), keepdims=True) + again[:, None, None, None]
    dear = (whole > most) & np.isfinite(whole)
    cost[:, 1:] = np.where(dear, most, cost[:, 1:])
    for one in (waits, lag):
        one[:, 1:][dear] = 0.0


def _usable(doing: ChangeEffect, step_s: float) -> Array:
    """Return the training seconds of a stretch in its first steps, until it is settled."""
    young = max(YOUNG, int(np.ceil(doing.pause_s / step_s)) + 1)
    lost = doing.pause_s or min(doing.start_s, step_s)
    return np.clip((np.arange(young) + 1) * step_s - lost, 0, step_s)


def _chain(job: int, start: int, place: int, came_from: list[tuple[Counts, Counts]], counts: Counts) -> Counts:
    end = len(came_from)
    workers = np.zeros(end, dtype=np.int64)
    while True:
        workers[max(start, 0) : end] = counts[place]
        if start < 0:
            return workers
        end = start
        starts, places = came_from[start]
        start, place = int(starts[job]), int(places[job])


BELIEVED = (0.85, 0.15)  # weights of the mean and the high end of an outlook in the expected cost
SATURATED = 0.95  # utilization above which workers have no reserve
WRONG = 1.2  # ratio of arrivals to the outlook above which, with samples waiting, the outlook is wrong
WAITS = 0.5  # share of the SLO lag above which the outlook is checked
KNOWN_S = 3600.0  # seconds until the real scenario is known, because the traffic level is judged by the last 40 minutes
# limit on the cost of having planned for too little traffic, in hours of the mean number of needed workers
SURPRISE_H = 10.0
# that limit applies if the high end of the outlook is this far above the mean, relative to the mean; larger distances
# are recognized sooner
PLAIN = 0.4
# exponent of the lag price on days with broad peaks; with an exponent of 1, taxi traffic would get too much lag
STEEPER = 1.5
WORTH = (0.7, 2.5)  # limits on the factor of the lag price
FULL = 0.999  # if traffic exceeds this share of the largest capacity, no number of workers keeps up


def due(view: OnlineView, rules: OnlineRules, *, planned_at: float) -> bool:
    since = view.at - planned_at
    return not view.pausing and (since >= rules.period_s or (since >= rules.period_s / 10 and _surprised(view, rules)))


def decide(view: OnlineView, rules: OnlineRules) -> Scaling:
    return decide_all([view], rules)[0]


def decide_all(views: Sequence[OnlineView], rules: OnlineRules) -> list[Scaling]:
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
            f"capacity is known for 0 to {len(view.capacity) - 1} workers: expected it up to the most, {rules.most}"
        )
    if view.pausing:
        return Scaling(workers=view.workers, why=f"a change to {view.workers} workers is under way")
    bounded = min(max(view.workers, rules.fewest), rules.most)
    if bounded != view.workers:
        return Scaling(workers=bounded, why=f"{view.workers} workers are not {rules.fewest} to {rules.most}")
    return None


def _surprised(view: OnlineView, rules: OnlineRules) -> bool:
    """Return True if samples wait because traffic far exceeds the outlook (Kale's thresholds)."""
    waits = view.lag_s > WAITS * rules.slo_lag_s and view.utilization > SATURATED
    return waits and view.arrivals > WRONG * view.outlook.mean[0]


def _as_it_is(view: OnlineView) -> TrafficOutlook:
    """Return an outlook in which current traffic continues, or the old outlook where it is higher."""
    mean = tuple(max(view.arrivals, one) for one in view.outlook.mean)
    high = tuple(max(one, other) for one, other in zip(mean, view.outlook.high, strict=True))
    return replace(view.outlook, mean=mean, high=high, why="what comes now is taken to go on")


def needs(capacity: NDArray[np.float64], traffic: Sequence[float]) -> NDArray[np.int64]:
    """Return, for each traffic, the fewest workers that train more than arrives (Eqn 10). If there is no such number,
    return the number with the highest capacity."""
    most = int(capacity.argmax())
    return np.minimum(np.searchsorted(np.maximum.accumulate(capacity[: most + 1]), traffic, side="right"), most)


def lag_worth(mean: float, peak: float, above: float) -> float:
    """Return the factor on the lag price, which is 1 for a day whose mean need is half its peak. The more workers
    scaling saves compared with the peak, the more lag is accepted, so the factor is smaller. `above` is the distance of
    the high end from the mean. If it is large, the peak is uncertain, and the factor is smaller too.
    """
    return float(np.clip((mean / max(peak - mean, 1e-9)) ** STEEPER / max(above / PLAIN, 1.0) ** 2, *WORTH))


def _best(
    views: Sequence[OnlineView], outlooks: Sequence[TrafficOutlook], step_s: float, steps: int, rules: OnlineRules
) -> list[WorkerPlan]:
    capacity = np.asarray([view.capacity[: rules.most + 1] for view in views])
    needed = [needs(here, outlook.mean) for here, outlook in zip(capacity, outlooks, strict=True)]
    usual = np.maximum([one.mean() for one in needed], rules.fewest)
    hour = usual * (3600.0 / step_s)
    above = _above(outlooks)
    worth = [lag_worth(here.mean(), here.max(), one) for here, one in zip(needed, above, strict=True)]
    prices = HorizonPrices(
        slo_s=rules.slo_lag_s,
        lag=rules.lag_price * usual * worth,
        late=rules.late_price * usual,
        change=rules.change_price * hour,
        again=SURPRISE_H * hour * PLAIN / above,
        known=round(KNOWN_S / step_s),
    )
    jobs = HorizonJobs(
        step_s=step_s,
        traffic=np.asarray([(outlook.mean[:steps], outlook.high[:steps]) for outlook in outlooks]),
        shares=np.asarray(BELIEVED),
        workers=np.asarray([view.workers for view in views]),
        backlog=np.asarray([view.backlog for view in views]),
        capacity=capacity,
    )
    return plan(jobs, fewest=rules.fewest, prices=prices, doing=ChangeEffect(rules.pause_s, rules.start_s))


def _above(outlooks: Sequence[TrafficOutlook]) -> NDArray[np.float64]:
    return np.asarray(
        [max(float(np.max(np.divide(one.high, np.maximum(one.mean, 1e-9)))) - 1, 1e-9) for one in outlooks]
    )


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
