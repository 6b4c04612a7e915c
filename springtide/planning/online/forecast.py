"""Pure. What traffic will come: a day or a week like those before, as high as the last day was.

In: traffic by equal steps, the newest last (`History`). Out: a `Forecast` of the next steps, with an interval that four
of five values lie in, and why it is what it is. Needs NumPy only. Several simple members forecast; how much each is
believed is found by letting it forecast the job's own past days (`weigh`). With less than two days of history nothing
is known of days, and that is said: the last hour goes on. Next: least.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors

Array = NDArray[np.float64]
DAY_S = 86_400.0
WEEKS = 4  # of the past that a week like those before is made of
DAYS = 7
TRIED_DAYS = 7  # of the past that members are tried on
LEVEL = (0.5, 2.0)  # a day is not believed to be lower, or higher, than usual by more than this
HOUR_S = 3600.0
INTERVAL = (10.0, 90.0)  # percentiles of past errors
TRUST = 4  # the power of 1 / error by which a member is believed: 2 to 8 do about as well on real traffic
EXACT = 1e-4  # an error that is as good as none
ONLY_GUESS = 0.5  # share by which traffic may differ where nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Traffic in the past."""

    step_s: float
    values: Array
    """Samples a second, mean of each step."""

    def __post_init__(self) -> None:
        if self.step_s <= 0 or DAY_S % self.step_s:
            raise errors.BadInput(f"traffic by {self.step_s:g} s: wanted a step that a day is a multiple of")

    @property
    def day(self) -> int:
        """Steps of a day."""
        return int(DAY_S // self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Traffic to come, in samples a second."""

    step_s: float
    mean: Array
    low: Array
    high: Array
    """Nine of ten values lie below."""
    member: str
    why: str

    def finer(self, step_s: float) -> "Forecast":
        """The same by smaller steps, in straight lines between the middles of these."""
        times = round(self.step_s / step_s)
        if times <= 1:
            return self
        at = (np.arange(len(self.mean) * times) + 0.5) / times - 0.5
        here = np.arange(len(self.mean))
        mean, low, high = (np.interp(at, here, one) for one in (self.mean, self.low, self.high))
        return Forecast(step_s=self.step_s / times, mean=mean, low=low, high=high, member=self.member, why=self.why)


Member = Callable[[Array, int, int], Array]
"""The past, steps of a day, how many to forecast."""


def last_day(past: Array, day: int, steps: int) -> Array:
    """Tomorrow is like today."""
    return np.resize(past[-day:], steps)


def usual_day(past: Array, day: int, steps: int) -> Array:
    """The median of the same time on the last days."""
    days = min(DAYS, len(past) // day)
    return np.resize(np.median(past[-days * day :].reshape(days, day), axis=0), steps)


def usual_week(past: Array, day: int, steps: int) -> Array:
    """The median of the same time in the last weeks."""
    week = 7 * day
    weeks = min(WEEKS, len(past) // week)
    return np.resize(np.median(past[-weeks * week :].reshape(weeks, week), axis=0), steps)


def at_todays_level(member: Member) -> Member:
    """As high as the last day was beside what the member would have said of it."""

    def forecast(past: Array, day: int, steps: int) -> Array:
        said = member(past[:-day], day, day)
        level = float(past[-day:].sum() / max(said.sum(), 1e-9))
        return np.asarray(member(past, day, steps) * np.clip(level, *LEVEL))

    return forecast


MEMBERS: dict[str, tuple[Member, int]] = {
    "like the last day": (last_day, 1),
    "like the last days": (usual_day, 2),
    "like the last days, at today's level": (at_todays_level(usual_day), 3),
    "like the last weeks": (usual_week, 7),
    "like the last weeks, at today's level": (at_todays_level(usual_week), 8),
}
"""With the days that each needs."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each member is believed, and how the past days came out beside what they would have said."""

    members: tuple[tuple[str, float], ...]
    """Names and shares, the most believed first."""
    wape: float
    """Of all together: the sum of absolute errors, as a share of the traffic."""
    ratios: Array
    """Values of past days / what was said of them."""
    tried: int

    def forecast(self, past: Array, day: int, steps: int) -> Array:
        """What the members say, by their shares."""
        said: Array = np.zeros(steps)
        for name, share in self.members:
            said = said + share * MEMBERS[name][0](past, day, steps)
        return said


def weigh(history: History) -> Weights | None:
    """Let every member forecast the last days, each from what was known before it; None: too little past.

    One that has just enough past to speak at all is believed as much as the others on average.
    """
    past, day = history.values, history.day
    known = len(past) // day
    said: dict[str, Array] = {}
    off: dict[str, float | None] = {}
    for name, (member, needs) in MEMBERS.items():
        days = min(TRIED_DAYS, known - needs)
        if days < 0:
            continue
        starts = [len(past) - back * day for back in range(days, 0, -1)]
        told = np.asarray([member(past[:start], day, day) for start in starts]).reshape(days, day)
        came = past[len(past) - days * day :].reshape(days, day)
        said[name], off[name] = told, float(np.abs(told - came).sum() / max(came.sum(), 1e-9)) if days else None
    tested = [one for one in off.values() if one is not None]
    if not tested:
        return None
    middle = float(np.median(tested))
    weights = {name: max(middle if one is None else one, EXACT) ** -TRUST for name, one in off.items()}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    days = min(len(said[name]) for name, one in off.items() if one is not None)
    both = [(shares[name], said[name][len(said[name]) - days :]) for name, one in off.items() if one is not None]
    told = np.average([one for _, one in both], axis=0, weights=[share for share, _ in both])
    came = past[len(past) - days * day :].reshape(days, day)
    return Weights(
        members=tuple(sorted(shares.items(), key=lambda one: -one[1])),
        wape=float(np.abs(told - came).sum() / max(came.sum(), 1e-9)),
        ratios=(came / np.maximum(told, 1e-9)).ravel(),
        tried=days,
    )


def forecast(history: History, steps: int, *, weights: Weights | None = None) -> Forecast:
    """The next steps; `weights` as they were found before, or found now."""
    weights = weights or weigh(history)
    past, day = history.values, history.day
    if weights is None:
        hour = max(1, int(HOUR_S // history.step_s))
        mean = np.full(steps, float(past[-hour:].mean()) if len(past) else 0.0)
        known = f"{len(past) * history.step_s / HOUR_S:.1f} hours are known, which is less than two days"
        return Forecast(
            step_s=history.step_s, mean=mean, low=mean * (1 - ONLY_GUESS), high=mean * (1 + ONLY_GUESS),
            member="like the last hour", why=f"{known}: taken to go on as in the last hour",
        )  # fmt: skip
    mean = weights.forecast(past, day, steps)
    low, high = np.percentile(weights.ratios, INTERVAL)
    first, share = weights.members[0]
    why = f"{first} for {share:.0%} of it; together {weights.wape:.1%} off on the last {weights.tried} days"
    return Forecast(
        step_s=history.step_s, mean=mean, low=mean * float(low), high=mean * float(high), member=first, why=why
    )
