"""Pure. Computes the similarity of jobs by feature: user, model, tables, data source, batch size.

In: features as words and numbers. Out: one similarity matrix per feature, with values from 0 to 1, and the weight of
each feature in predicting another difference (`DistanceModel`). Next: `planning.lifecycle.warm_start` picks similar
past jobs, `planning.lifecycle.initial_size` uses their memory needs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.plan.view import Feature

Floats = NDArray[np.float64]
LEAST_WEIGHT = 0.05
"""Minimum share of all weights, divided among the features, so that every feature can break ties."""


def usable(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the informative features: non-empty words and finite numbers."""
    kept: dict[str, Feature] = {}
    for name, value in features.items():
        if isinstance(value, str):
            if value:
                kept[name] = value
        elif isinstance(value, int | float) and math.isfinite(value):
            kept[name] = float(value)
    return kept


class CodedFeature(NamedTuple):
    """One feature of several jobs: word codes (-1 without a word) and numbers (NaN without a number)."""

    words: NDArray[np.int64]
    numbers: Floats

    def part(self, some: slice) -> "CodedFeature":
        return CodedFeature(self.words[some], self.numbers[some])

    @property
    def known(self) -> bool:
        return bool((self.words >= 0).any() or not np.isnan(self.numbers).all())


Codes = dict[str, dict[str, int]]
"""Codes of words, by feature."""


def coded(jobs: Sequence[Mapping[str, Feature]], codes: Codes) -> dict[str, CodedFeature]:
    """Return every feature as arrays. New words get new codes."""
    found = {}
    for name in sorted({name for each in jobs for name in each}):
        known, values = codes.setdefault(name, {}), [each.get(name) for each in jobs]
        words = [known.setdefault(value, len(known)) if isinstance(value, str) else -1 for value in values]
        numbers = [math.nan if value is None or isinstance(value, str) else float(value) for value in values]
        found[name] = CodedFeature(np.array(words, dtype=np.int64), np.array(numbers))
    return found


def between(
    ones: Mapping[str, CodedFeature], others: Mapping[str, CodedFeature], count: tuple[int, int]
) -> dict[str, Floats]:
    """Return the similarity of each job of `ones` to each job of `others`, per feature; `count` has both sizes.

    Words are equal or not. Numbers have the ratio of the smaller to the larger. A missing feature, or a word against a
    number, has similarity 0.
    """
    return {
        name: _alike(ones[name], others[name]) if name in ones and name in others else np.zeros(count)
        for name in sorted({*ones, *others})
    }


def _alike(one: CodedFeature, other: CodedFeature) -> Floats:
    same = (one.words[:, None] == other.words) & (one.words[:, None] >= 0)
    left, right = one.numbers[:, None], other.numbers[None, :]
    larger = np.maximum(np.abs(left), np.abs(right))
    near = 1.0 - np.divide(np.abs(left - right), larger, out=np.zeros_like(larger), where=larger > 0)
    return np.where(same, 1.0, np.where(np.isfinite(larger), np.clip(near, 0.0, 1.0), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceModel:
    """Linear model that predicts the distance of two jobs from their distances in each feature."""

    weights: Mapping[str, float]
    chance: float
    """Difference between jobs that are alike in all features."""

    def apart(self, parts: Mapping[str, Floats]) -> Floats:
        """Return the expected distance of each pair. An unknown feature gets the smallest weight."""
        usual = min(self.weights.values())
        apart = sum(self.weights.get(name, usual) * (1.0 - part) for name, part in parts.items())
        return np.asarray(self.chance + apart)


def learn(parts: Mapping[str, Floats], apart: Floats, pairs: NDArray[np.bool_]) -> DistanceModel:
    """Learn the weight of each feature from the selected pairs.

    Non-negative least squares gives a redundant feature almost no weight.
    """
    from scipy import optimize

    known = np.stack([1.0 - part[pairs] for part in parts.values()], axis=1)
    found = optimize.nnls(np.hstack([known, np.ones((len(known), 1))]), apart[pairs])[0]
    least = LEAST_WEIGHT * max(float(found[:-1].sum()), LEAST_WEIGHT) / len(parts)
    weights = {name: max(least, float(weight)) for name, weight in zip(parts, found, strict=False)}
    return DistanceModel(weights=weights, chance=float(found[-1]))
