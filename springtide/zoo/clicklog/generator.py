"""Pure. Generates a click log with known true probabilities. Sample i depends only on (spec, i), so slices are
independent.

In: a `LogSpec` and indices. Out: `ClickRows`, made in cache-sized blocks, and the best AUC that any model can reach
on them: an expectation over all possible labels, without sampling noise. Next: `dataset`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog import counter_rng, population
from springtide.zoo.clicklog.counter_rng import Floats, Index
from springtide.zoo.clicklog.population import LogSpec

__all__ = ["auc_vs_lag"]

_BLOCK = 8192  # events per block; about 40 arrays of this size fit the second-level cache
_CALIBRATION = 65536  # number of events from which the bias is set; the click rate is then accurate to 0.002
_SECONDS_AN_HOUR = 3600.0
RATING_STEPS = (-2.0, -1.0, 0.0, 1.0)
"""A rating is 1 plus the number of these thresholds that lie below the noisy logit. Without label noise, clicks have
the ratings 4 and 5.
"""

_STREAM_USER, _STREAM_ITEM, _STREAM_CONTEXT, _STREAM_DENSE, _STREAM_LABEL, _STREAM_CONVERSION = range(20, 26)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickRows:
    """Samples of a click log."""

    time_s: NDArray[np.float64]
    """Seconds since the start of the log, shape [n]."""
    users: NDArray[np.int64]
    """Ranks of users, shape [n], with 0 for the most active user. The logged id is sparse[:, 0]."""
    sparse: NDArray[np.int64]
    """Ids, shape [n, fields]."""
    dense: NDArray[np.float32]
    """Counters, shape [n, counters]."""
    probability: NDArray[np.float64]
    """True click probabilities, shape [n]."""
    click: NDArray[np.float32]
    """Clicks, 0 or 1, shape [n]."""
    rating: NDArray[np.int64]
    """Ratings, 1 to 5, shape [n]."""
    conversion: NDArray[np.float32]
    """Conversions, 0 or 1, shape [n]; only clicks can convert."""


class Generator:
    """Generator of the samples of one log."""

    def __init__(self, spec: LogSpec) -> None:
        self.spec = spec
        self.world = population.make(spec)
        self.clicks = population.Truth(self.world, 0, spec.click_rate)
        self.conversions = population.Truth(self.world, 1, spec.conversion_rate)
        before = np.arange(-_CALIBRATION, 0, dtype=np.int64)
        draw = self._draw(before, self._room(_CALIBRATION))
        start = np.zeros(_CALIBRATION, dtype=np.float32)
        weight = np.ones(_CALIBRATION)
        for task in (self.clicks, self.conversions):  # conversions come second, because they are a share of the clicks
            task.bias = population.centre(task.logit(draw, start), weight, task.rate)
            weight = task.probability(task.logit(draw, start))

    def rows(self, index: Index) -> ClickRows:
        """Return the samples with these indices, in this order."""
        index = np.ascontiguousarray(index, dtype=np.int64)
        n, spec = len(index), self.spec
        rows = ClickRows(
            time_s=index / spec.events_per_s,
            users=np.empty(n, dtype=np.int64),
            sparse=np.empty((n, len(spec.cardinalities)), dtype=np.int64),
            dense=np.empty((n, spec.dense), dtype=np.float32),
            probability=np.empty(n),
            click=np.empty(n, dtype=np.float32),
            rating=np.empty(n, dtype=np.int64),
            conversion=np.empty(n, dtype=np.float32),
        )
        for start in range(0, n, _BLOCK):
            self._fill(rows, slice(start, min(start + _BLOCK, n)), index)
        return rows

    def between(self, start: int, stop: int) -> ClickRows:
        return self.rows(np.arange(start, stop, dtype=np.int64))

    def frozen_probability(self, index: Index, lag_s: float) -> NDArray[np.float64]:
        """Return the click probabilities that would be true `lag_s` seconds before each event."""
        index = np.ascontiguousarray(index, dtype=np.int64)
        out = np.empty(len(index))
        for start in range(0, len(index), _BLOCK):
            part = index[start : start + _BLOCK]
            draw = self._draw(part, self._room(len(part)))
            logit = self.clicks.logit(draw, self._hours(part / self.spec.events_per_s - lag_s))
            out[start : start + _BLOCK] = self.clicks.probability(logit)
        return out

    def _fill(self, rows: ClickRows, block: slice, index: Index) -> None:
        event = index[block]
        ids = self._room(len(event))
        draw = self._draw(event, ids)
        hours = self._hours(rows.time_s[block])
        logit = self.clicks.logit(draw, hours)
        chance = self.clicks.probability(logit)
        luck = counter_rng.uniforms(event, self.world.stream(_STREAM_LABEL))
        rows.users[block] = draw.users
        rows.sparse[block] = ids.T
        rows.dense[block] = draw.dense.T
        rows.probability[block] = chance
        clicked = luck < chance
        rows.click[block] = clicked
        rows.rating[block] = _rating(logit, luck)
        converts = self.conversions.probability(self.conversions.logit(draw, hours))
        luck = counter_rng.uniforms(event, self.world.stream(_STREAM_CONVERSION))
        rows.conversion[block] = clicked & (luck < converts)

    def _draw(self, event: Index, ids: NDArray[np.int32]) -> population.EventDraw:
        """Draw users, items, contexts and counters of these events. Write the ids of the events to `ids`, of shape
        [fields, events]."""
        world = self.world
        users = world.laws[population.USER_FIELD].ranks(counter_rng.bits(event, world.stream(_STREAM_USER)))
        items, match = population.choose(world, users, event, world.stream(_STREAM_ITEM))
        contexts: dict[int, Index] = {}
        for field, (kind, values, law) in enumerate(zip(world.kinds, world.values, world.laws, strict=True)):
            if kind == "context":
                contexts[field] = law.ranks(counter_rng.bits(event, world.stream(_STREAM_CONTEXT, field)))
            rank = contexts[field] if kind == "context" else users if kind == "user" else items
            values.take(rank, out=ids[field], mode="clip")
        dense = counter_rng.normals(event, world.stream(_STREAM_DENSE), self.spec.dense)
        # these columns also depend on the user; with the factors 0.6 and 0.8, the variance remains 1
        for column in range(min(4, self.spec.dense)):
            dense[column] *= np.float32(0.8)
            dense[column] += np.float32(0.6) * world.users[:, column].take(users, mode="clip")
        return population.EventDraw(users=users, items=items, contexts=contexts, match=match, dense=dense)

    def _room(self, events: int) -> NDArray[np.int32]:
        return np.empty((len(self.world.kinds), events), dtype=np.int32)

    @staticmethod
    def _hours(time_s: NDArray[np.float64]) -> Floats:
        return (time_s / _SECONDS_AN_HOUR).astype(np.float32)


def _rating(logit: Floats, luck: NDArray[np.float64]) -> NDArray[np.int64]:
    liking = logit - np.log(luck / (1 - luck))
    rating = np.ones(len(logit), dtype=np.int64)
    for step in RATING_STEPS:
        rating += liking > step
    return rating


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """Expected AUC of a perfect model that lags behind the events by a given time."""

    lag_s: float
    auc: float


def expected_auc(probability: NDArray[np.float64], score: NDArray[np.float64]) -> float:
    """Return the expected AUC of `score` if labels are drawn with `probability`. A tie counts as half."""
    _, group = np.unique(score, return_inverse=True)
    ones = np.bincount(group, weights=probability)
    zeros = np.bincount(group, weights=1 - probability)
    below = np.cumsum(zeros) - zeros
    # subtract the pairs of a sample with itself, because these are no pairs
    itself = (probability * (1 - probability)).sum()
    right = (ones * (below + zeros / 2)).sum() - itself / 2
    return float(right / (ones.sum() * zeros.sum() - itself))


def auc_vs_lag(
    generator: Generator, lags_s: Sequence[float], *, at_s: float = 0.0, samples: int = 100_000
) -> list[LagPoint]:
    """Return the AUC, for events from `at_s` on, of the probabilities that were true `lag` seconds before each
    event."""
    first = int(at_s * generator.spec.events_per_s)
    index = np.arange(first, first + samples, dtype=np.int64)
    true = generator.rows(index).probability
    return [LagPoint(lag_s=lag, auc=expected_auc(true, generator.frozen_probability(index, lag))) for lag in lags_s]
