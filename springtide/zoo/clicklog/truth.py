"""Pure. Planted logistic truth: the probability of a click or conversion, and its drift over time.

In: `Population`, `EventDraw` (ids, counters and match of events). Out: logits. Next: `clicklog` draws labels from them,
`best_auc` computes the best AUC.

Every weight is r cos(phase + speed * hours). At any hour it is normal with the same spread. Its correlation over a lag
is exp(-(drift * lag)^2 / 2), because the speeds are normal with standard deviation `drift_per_hour`. The match of user
and item turns likewise, with one speed per user.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog import counter_rng
from springtide.zoo.clicklog.counter_rng import Floats, Index
from springtide.zoo.clicklog.population import LATENT, Population

Ranks = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraw:
    """Events before their labels are drawn."""

    users: Index
    """User rank of each event."""
    items: Index
    """Item rank of each event."""
    contexts: dict[int, Index]
    """Rank in each context field."""
    match: Floats
    """Match of the item with the user at hour 0."""
    dense: Floats
    """Counters, [counters, events]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingWeights:
    """Weights that change over time."""

    size: Floats
    phase: Floats
    speed: Floats

    def at(self, which: Ranks | slice, hours: Floats | float) -> Floats:
        """Return the weights with these indices at these hours."""
        if isinstance(which, slice):
            speed, phase, size = self.speed[which], self.phase[which], self.size[which]
        else:  # a clipped take is twice as fast as indexing
            speed, phase, size = (of.take(which, mode="clip") for of in (self.speed, self.phase, self.size))
        turned = speed * hours
        turned += phase
        np.cos(turned, out=turned)
        turned *= size
        return turned


@dataclass(frozen=True, slots=True, kw_only=True)
class _Still:
    """Weights of a truth without drift, summed in advance by user rank, item rank and rank in each context field."""

    user: Floats
    item: Floats
    contexts: dict[int, Floats]
    dense: Floats


class Truth:
    """Planted weights of one task; `task` 0 is the click, 1 the conversion."""

    def __init__(self, world: Population, task: int, rate: float) -> None:
        spec = world.spec
        self._world = world
        each = spec.field_strength / np.sqrt(len(world.kinds))
        self._fields = [
            _weights(size, each, spec.drift_per_hour, world.stream(10, task, field))
            for field, size in enumerate(spec.cardinalities)
        ]
        self._dense = _weights(
            spec.dense, spec.dense_strength / np.sqrt(max(spec.dense, 1)), spec.drift_per_hour, world.stream(11, task)
        )
        # without drift this is skipped: for ten million users it takes 360 MB
        people = np.arange(len(world.users) if spec.drift_per_hour > 0 else 0, dtype=np.int64)
        self._turn = np.float32(spec.drift_per_hour) * counter_rng.normals(people, world.stream(12, task))[0]
        self._other = np.ascontiguousarray(counter_rng.normals(people, world.stream(13, task), LATENT).T)
        self._still = None if spec.drift_per_hour > 0 else self._stand()
        self.rate = rate
        self.bias = 0.0

    def logit(self, draw: EventDraw, hours: Floats) -> Floats:
        """Return the true logit of each event at these hours."""
        logit = self._drifting(draw, hours) if self._still is None else self._standing(draw, self._still)
        logit += np.float32(self.bias)
        return logit

    def probability(self, logit: Floats) -> NDArray[np.float64]:
        """Return the true probability of label 1, including label noise."""
        noise = self._world.spec.label_noise
        return (1 - noise) / (1 + np.exp(-logit.astype(np.float64))) + noise * self.rate

    def _stand(self) -> _Still:
        world = self._world
        by_rank = [weights.at(values, 0.0) for weights, values in zip(self._fields, world.values, strict=True)]
        of_kind = {kind: [by_rank[f] for f, k in enumerate(world.kinds) if k == kind] for kind in ("user", "item")}
        return _Still(
            user=np.sum(of_kind["user"], axis=0, dtype=np.float32),
            item=np.sum(of_kind["item"], axis=0, dtype=np.float32),
            contexts={field: by_rank[field] for field, kind in enumerate(world.kinds) if kind == "context"},
            dense=self._dense.at(slice(None), 0.0),
        )

    def _standing(self, draw: EventDraw, still: _Still) -> Floats:
        logit = still.user.take(draw.users, mode="clip")
        logit += still.item.take(draw.items, mode="clip")
        for field, rank in draw.contexts.items():
            logit += still.contexts[field].take(rank, mode="clip")
        logit += np.float32(self._world.spec.interaction_strength) * draw.match
        for weight, column in zip(still.dense, draw.dense, strict=True):
            logit += weight * column
        return logit

    def _drifting(self, draw: EventDraw, hours: Floats) -> Floats:
        world = self._world
        ranks = {"user": draw.users, "item": draw.items}
        logit = self._turned_match(draw, hours)
        logit *= np.float32(world.spec.interaction_strength)
        for field, (kind, weights) in enumerate(zip(world.kinds, self._fields, strict=True)):
            rank = draw.contexts[field] if kind == "context" else ranks[kind]
            logit += weights.at(world.values[field].take(rank, mode="clip"), hours)
        for which, column in enumerate(draw.dense):
            logit += self._dense.at(slice(which, which + 1), hours) * column
        return logit

    def _turned_match(self, draw: EventDraw, hours: Floats) -> Floats:
        """Return the match after the user's vector has turned from its start towards a second vector."""
        angle = self._turn.take(draw.users, mode="clip") * hours
        other = self._other.take(draw.users, axis=0, mode="clip")
        across = np.einsum("nk,nk->n", other, self._world.items.take(draw.items, axis=0, mode="clip"))
        across *= np.float32(LATENT**-0.5)
        turned: Floats = np.cos(angle) * draw.match + np.sin(angle) * across
        return turned


def centre(logit: Floats, weight: NDArray[np.float64], rate: float) -> float:
    """Return the bias that brings the weighted mean probability of these logits to `rate`."""
    low, high = -40.0, 40.0
    wide = logit.astype(np.float64)
    for _ in range(60):
        middle = (low + high) / 2
        if np.average(1 / (1 + np.exp(-(wide + middle))), weights=weight) < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _weights(count: int, spread: float, drift: float, stream: int) -> DriftingWeights:
    one, two, speed = counter_rng.normals(np.arange(count, dtype=np.int64), stream, 3)
    return DriftingWeights(
        size=np.float32(spread) * np.hypot(one, two), phase=np.arctan2(two, one), speed=np.float32(drift) * speed
    )
