"""Pure. Settings of a generated click log, its users and items, and the weights that determine true click
probabilities.

In: a `LogSpec`. Out: `Population` (latent vectors, attributes, popularity and histories of users and items;
attributes follow from the latent vectors, so fields correlate as in real logs) and `Truth` (logits of clicks and
conversions).
Next: `generator` draws events and labels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.core.validation import holds_numbers
from springtide.zoo.clicklog import counter_rng
from springtide.zoo.clicklog.counter_rng import Floats, Index, Zipf

SMALL_FIELDS: tuple[int, ...] = (
    *(20_000, 5_000),
    *(40, 60, 24, 200, 300, 7, 1_000, 500, 100, 10, 20, 2_000),
    *(100, 50, 5_000, 400, 30, 12, 30, 80, 500, 2_000, 1_000, 50),
)
"""Numbers of ids of 26 fields: users, items, and then in turn item attribute, user attribute and context."""

RANK_FIELDS: tuple[int, ...] = (*SMALL_FIELDS, 300, 100, 50, 20, 500, 40, 60, 10, 200, 25, 100)
"""Numbers of ids of 37 fields, for the multi-task ranker."""


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """Settings of a click log. Equal specs make equal logs."""

    seed: int = 0
    """Seed of ids, counters, truth and labels."""
    cardinalities: tuple[int, ...] = SMALL_FIELDS
    """Number of ids of each field. Field 0 is the user, field 1 the item, and then item attribute, user attribute and
    context follow in turn."""
    dense: int = 13
    """Number of counters; the first four depend on the user."""
    zipf: float = 1.05
    """Exponent of the power law of ids. A higher value is more skewed, and 0 is uniform."""
    taste: float = 0.9
    """Probability that a user takes the better match of two popular items; 0.5 means no preference."""
    click_rate: float = 0.25
    """Share of clicks, with or without label noise. With drift, the value is the share at the start of the log."""
    conversion_rate: float = 0.1
    """Share of conversions among clicks."""
    label_noise: float = 0.0
    """Share of labels that are replaced by random labels of the same click rate, which lowers the best possible AUC."""
    field_strength: float = 1.2
    """Standard deviation of what all fields together contribute to the logit."""
    interaction_strength: float = 0.7
    """Standard deviation of what the match between user and item contributes to the logit."""
    dense_strength: float = 0.5
    """Standard deviation of what the counters contribute to the logit."""
    drift_per_hour: float = 0.0
    """Drift of the true probabilities. After h hours, the correlation of the probabilities with their start values is
    exp(-(drift h)^2 / 2); 0 means no drift.
    """
    events_per_s: float = 1000.0
    """Events per second of event time: sample i happens at i / events_per_s."""
    history: int = 20
    """Longest history of a user, for models with attention."""

    def __post_init__(self) -> None:
        limits = [
            (isinstance(self.seed, int), "seed", "a whole number"),
            (len(self.cardinalities) >= 3, "cardinalities", "at least 3 fields: user, item, item attribute"),
            (min(self.cardinalities, default=0) >= 2, "cardinalities", "at least 2 ids a field"),
            (max(self.cardinalities, default=0) < 2**31, "cardinalities", "fewer than 2**31 ids a field"),
            (self.dense >= 0, "dense", "0 or more"),
            (0 <= self.zipf <= 4, "zipf", "0 to 4"),
            (0.5 <= self.taste <= 1, "taste", "0.5 to 1"),
            (0 < self.click_rate < 1, "click_rate", "between 0 and 1"),
            (0 < self.conversion_rate < 1, "conversion_rate", "between 0 and 1"),
            (0 <= self.label_noise <= 1, "label_noise", "0 to 1"),
            (self.drift_per_hour >= 0, "drift_per_hour", "0 or more"),
            (self.events_per_s > 0, "events_per_s", "above 0"),
            (self.history >= 1, "history", "1 or more"),
        ]
        for fits, name, expected in limits:
            if not fits:
                raise errors.BadInput(f"click log: {name} is {getattr(self, name)!r}, expected {expected}")


LATENT = 8
_ATTRIBUTE_LOYALTY = 0.8  # correlation of an attribute with its latent direction
_CYCLE = ("item", "user", "context")

USER_FIELD, ITEM_FIELD, CATEGORY_FIELD = 0, 1, 2


def field_kinds(fields: int) -> tuple[str, ...]:
    """Return the subject of each field: "user", "item" or "context"."""
    return ("user", "item", *(_CYCLE[i % 3] for i in range(fields - 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The users and items of a click log."""

    spec: LogSpec
    kinds: tuple[str, ...]
    users: Floats
    """Latent vectors of users, shape [users, LATENT]."""
    items: Floats
    """Latent vectors of items, shape [items, LATENT]."""
    values: tuple[NDArray[np.int32], ...]
    """One table per field. Each table maps the rank of a user, item or context to the logged id."""
    laws: tuple[Zipf, ...]
    """Frequency distribution of the ranks of each field."""

    def stream(self, *parts: int) -> int:
        """Return the key of a random stream of this log."""
        return counter_rng.key(self.spec.seed, *parts)


def make(spec: LogSpec) -> Population:
    kinds = field_kinds(len(spec.cardinalities))
    n_users, n_items = spec.cardinalities[:2]
    latent = {
        "user": _latent(n_users, counter_rng.key(spec.seed, 1)),
        "item": _latent(n_items, counter_rng.key(spec.seed, 2)),
    }
    laws = tuple(Zipf(size, spec.zipf) for size in spec.cardinalities)
    values = []
    for field, (kind, size) in enumerate(zip(kinds, spec.cardinalities, strict=True)):
        names = _shuffled(size, counter_rng.key(spec.seed, 3, field))
        if kind == "context" or field in (USER_FIELD, ITEM_FIELD):
            values.append(names)
        else:
            direction = _direction(counter_rng.key(spec.seed, 7, (field - 2) // len(_CYCLE)))
            shown = _attribute(latent[kind], direction, laws[field], counter_rng.key(spec.seed, 4, field))
            values.append(names[shown])
    return Population(
        spec=spec, kinds=kinds, users=latent["user"], items=latent["item"], values=tuple(values), laws=laws
    )


def choose(world: Population, users: Index, event: Index, stream: int) -> tuple[Index, Floats]:
    """Return the rank of the item that each user is shown, and the item's match with the user (standard deviation
    near 1).

    Two items are drawn by popularity. With probability `taste`, the better match wins.
    """
    law, taste = world.laws[ITEM_FIELD], world.spec.taste
    rank = law.ranks(counter_rng.bits(event, counter_rng.key(stream, 0)))
    two = law.ranks(counter_rng.bits(event, counter_rng.key(stream, 1)))
    person = world.users.take(users, axis=0, mode="clip")
    match_one, match_two = _match(person, world.items, rank), _match(person, world.items, two)
    follows = counter_rng.bits(event, counter_rng.key(stream, 2)) < np.uint64(min(int(taste * 2.0**64), 2**64 - 1))
    takes_one = (match_one >= match_two) == follows
    return np.where(takes_one, rank, two), np.where(takes_one, match_one, match_two)


def histories(world: Population) -> NDArray[np.int64]:
    """Return the earlier items of each user rank as item id + 1, padded with 0, in the shape [users, history]."""
    size, longest = world.spec.cardinalities[USER_FIELD], world.spec.history
    users = np.repeat(np.arange(size, dtype=np.int64), longest)
    event = np.arange(size * longest, dtype=np.int64)
    items, _ = choose(world, users, event, world.stream(5))
    seen = (world.values[ITEM_FIELD][items].astype(np.int64) + 1).reshape(size, longest)
    lengths = counter_rng.bits(np.arange(size, dtype=np.int64), world.stream(6)) % np.uint64(longest + 1)
    seen[np.arange(longest) >= lengths.astype(np.int64)[:, None]] = 0
    return seen


def categories(world: Population) -> NDArray[np.int64]:
    """Return category id + 1 for each item id + 1; 0 for 0."""
    table = np.zeros(world.spec.cardinalities[ITEM_FIELD] + 1, dtype=np.int64)
    table[world.values[ITEM_FIELD] + 1] = world.values[CATEGORY_FIELD] + 1
    return table


def _latent(size: int, stream: int) -> Floats:
    return np.ascontiguousarray(counter_rng.normals(np.arange(size, dtype=np.int64), stream, LATENT).T)


def _shuffled(size: int, stream: int) -> NDArray[np.int32]:
    """Return ids by rank in shuffled order, so that frequent ids are not adjacent in a table."""
    return np.argsort(counter_rng.bits(np.arange(size, dtype=np.int64), stream), kind="stable").astype(np.int32)


def _direction(stream: int) -> Floats:
    """Return the latent direction that the n-th user attribute and the n-th item attribute share, so that the two
    correlate."""
    direction: Floats = counter_rng.normals(np.arange(LATENT, dtype=np.int64), stream)[0]
    direction /= np.sqrt((direction**2).sum())
    return direction


def _attribute(latent: Floats, direction: Floats, law: Zipf, stream: int) -> NDArray[np.int64]:
    """Return a rank for each owner: a noisy view of one latent direction, with the distribution of the field."""
    noise = counter_rng.normals(np.arange(len(latent), dtype=np.int64), stream)[0]
    shown = _ATTRIBUTE_LOYALTY * (latent * direction).sum(axis=1) + np.sqrt(1 - _ATTRIBUTE_LOYALTY**2) * noise
    place = np.empty(len(latent))
    place[np.argsort(shown, kind="stable")] = (np.arange(len(latent)) + 0.5) / len(latent)
    return law.quantile(place)


def _match(person: Floats, items: Floats, rank: Index) -> Floats:
    dots: Floats = np.einsum("nk,nk->n", person, items.take(rank, axis=0, mode="clip"))
    dots *= np.float32(LATENT**-0.5)
    return dots


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
    """Counters, shape [counters, events]."""


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
        else:  # `take` with mode="clip" is twice as fast as indexing
            speed, phase, size = (of.take(which, mode="clip") for of in (self.speed, self.phase, self.size))
        turned = speed * hours
        turned += phase
        np.cos(turned, out=turned)
        turned *= size
        return turned


@dataclass(frozen=True, slots=True, kw_only=True)
class _Still:
    """Weights of a log without drift, summed in advance by user rank, item rank and rank in each context field."""

    user: Floats
    item: Floats
    contexts: dict[int, Floats]
    dense: Floats


class Truth:
    """True weights of one task. Task 0 is the click, and task 1 is the conversion."""

    def __init__(self, world: Population, task: int, rate: float) -> None:
        spec = world.spec
        self._world = world
        strength = spec.field_strength / np.sqrt(len(world.kinds))
        self._fields = [
            _weights(size, strength, spec.drift_per_hour, world.stream(10, task, field))
            for field, size in enumerate(spec.cardinalities)
        ]
        self._dense = _weights(
            spec.dense, spec.dense_strength / np.sqrt(max(spec.dense, 1)), spec.drift_per_hour, world.stream(11, task)
        )
        # without drift these arrays are not needed, and for ten million users they would take 360 MB
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
        """Return the match after the user's vector has turned from its initial direction towards a second vector."""
        angle = self._turn.take(draw.users, mode="clip") * hours
        other = self._other.take(draw.users, axis=0, mode="clip")
        across = np.einsum("nk,nk->n", other, self._world.items.take(draw.items, axis=0, mode="clip"))
        across *= np.float32(LATENT**-0.5)
        turned: Floats = np.cos(angle) * draw.match + np.sin(angle) * across
        return turned


def centre(logit: Floats, weight: NDArray[np.float64], rate: float) -> float:
    """Return the bias with which the weighted mean probability of these logits is `rate`."""
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
    first, two, speed = counter_rng.normals(np.arange(count, dtype=np.int64), stream, 3)
    return DriftingWeights(
        size=np.float32(spread) * np.hypot(first, two), phase=np.arctan2(two, first), speed=np.float32(drift) * speed
    )
