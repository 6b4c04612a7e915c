"""Pure. Past traffic and traffic forecasts, in equal time steps.

In: samples per second counted by a master, with gaps while it was down. Out: a `PastTraffic` without gaps, and a
`RateForecast` with equal steps. Next: seasonal.py.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from springtide import errors

Array = NDArray[np.float64]
DAY_S = 86_400.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTraffic:
    """Past traffic in equal time steps."""

    step_s: float
    values: Array
    """Mean samples per second of each step, newest last; NaN where unknown."""

    def __post_init__(self) -> None:
        if not 0 < self.step_s <= DAY_S or abs(DAY_S / self.step_s - round(DAY_S / self.step_s)) > 1e-9:
            raise errors.BadInput(f"traffic by {self.step_s:g} s: wanted a step that a day is a multiple of")
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim != 1 or np.isinf(values).any() or (values < 0).any():
            raise errors.BadInput("traffic: wanted one number of samples a second for each step, 0 or more, or NaN")
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, at_s: Array, rates: Array, step_s: float) -> "PastTraffic":
        """Build from rates at rising times: the mean of each step, NaN for a step without rates."""
        place = ((at_s - at_s[0]) // step_s).astype(np.int64)
        count = np.bincount(place)
        sums = np.bincount(place, weights=rates)
        return cls(step_s=step_s, values=np.where(count > 0, sums / np.maximum(count, 1), np.nan))

    @property
    def day(self) -> int:
        return round(DAY_S / self.step_s)

    @property
    def days(self) -> int:
        return len(self.values) // self.day

    def before(self, step: int, *, days: int | None = None) -> "PastTraffic":
        """Return the traffic before a step, limited to the last `days`."""
        first = 0 if days is None else max(0, step - days * self.day)
        return replace(self, values=self.values[first:step])

    def filled(self) -> "PastTraffic":
        """Fill the gaps: short gaps by interpolation, longer gaps by the same time on other days.

        Steps before the first known value are cut off.
        """
        known = ~np.isnan(self.values)
        if known.all():
            return self
        first = int(np.argmax(known)) if known.any() else len(known)
        values, known = self.values[first:].copy(), known[first:]
        if len(values):
            here = np.arange(len(values))
            lines = np.interp(here, here[known], values[known])
            usual = _same_time(values, self.day)
            use_line = ~known & (_short(known, int(HOUR_S // self.step_s)) | np.isnan(usual))
            values = np.where(known, values, np.where(use_line, lines, usual))
        return replace(self, values=values)


def _short(known: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return the steps in gaps of at most `most` steps."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], known, [True])).astype(np.int8)))
    short = np.zeros(len(known), dtype=bool)
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        short[first:end] = end - first <= most
    return short


def _same_time(values: Array, day: int) -> Array:
    """Return the median of the same time of day for each step; NaN if no day has a value."""
    days = -(-len(values) // day)
    whole = np.full(days * day, np.nan)
    whole[len(whole) - len(values) :] = values
    table = whole.reshape(days, day)
    nobody = np.isnan(table).all(axis=0)
    usual = np.full(day, np.nan)
    usual[~nobody] = np.nanmedian(table[:, ~nobody], axis=0)
    return np.tile(usual, days)[len(whole) - len(values) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateForecast:
    """Traffic forecast, in samples per second."""

    step_s: float
    mean: Array
    low: Array
    high: Array
    """90th percentile."""
    member: str
    """Model of the forecast, or the member with the largest weight."""
    why: str
    tried: int = 0
    """Past days on which the model was tested to get `low` and `high`; 0 means a guess."""

    def later(self, steps: int, most: int | None = None) -> "RateForecast":
        """Return the forecast after `steps` have passed, limited to `most` steps."""
        end = None if most is None else steps + most
        return replace(self, mean=self.mean[steps:end], low=self.low[steps:end], high=self.high[steps:end])

    def because(self, why: str) -> "RateForecast":
        """Return the forecast with `why` put before its reason."""
        return replace(self, why=f"{why}; {self.why}" if self.why else why)
