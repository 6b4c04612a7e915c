"""Pure. Users and items of a generated click log, with their attributes.

In: `LogSpec`. Out: `Population`: latent vectors, attributes, popularity, and histories of users. Attributes follow from
the latent vectors, so fields correlate as in real logs. Next: `truth` (clicks), `clicklog` (events).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog import counter_rng
from springtide.zoo.clicklog.counter_rng import Floats, Index
from springtide.zoo.clicklog.spec import LogSpec
from springtide.zoo.clicklog.zipf import Zipf

LATENT = 8
_ATTRIBUTE_LOYALTY = 0.8  # correlation of an attribute with its latent direction
_CYCLE = ("item", "user", "context")

USER_FIELD, ITEM_FIELD, CATEGORY_FIELD = 0, 1, 2


def field_kinds(fields: int) -> tuple[str, ...]:
    """Return the subject of each field: "user", "item" or "context"."""
    return ("user", "item", *(_CYCLE[i % 3] for i in range(fields - 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The population behind a click log."""

    spec: LogSpec
    kinds: tuple[str, ...]
    users: Floats
    """Latent vectors of users, [users, LATENT]."""
    items: Floats
    """Latent vectors of items, [items, LATENT]."""
    values: tuple[NDArray[np.int32], ...]
    """One table per field, from the rank of a user, item or context to the logged id."""
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
    """Return the item rank that each user meets, and its match with the user (standard deviation near 1).

    Two items are drawn by popularity. With probability `taste`, the better match wins.
    """
    law, taste = world.laws[ITEM_FIELD], world.spec.taste
    one = law.ranks(counter_rng.bits(event, counter_rng.key(stream, 0)))
    two = law.ranks(counter_rng.bits(event, counter_rng.key(stream, 1)))
    person = world.users.take(users, axis=0, mode="clip")
    match_one, match_two = _match(person, world.items, one), _match(person, world.items, two)
    follows = counter_rng.bits(event, counter_rng.key(stream, 2)) < np.uint64(min(int(taste * 2.0**64), 2**64 - 1))
    takes_one = (match_one >= match_two) == follows
    return np.where(takes_one, one, two), np.where(takes_one, match_one, match_two)


def histories(world: Population) -> NDArray[np.int64]:
    """Return the earlier items of each user rank, as item id + 1, padded with 0: [users, history]."""
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
    """Return shuffled ids by rank, so that frequent ids are not adjacent in a table."""
    return np.argsort(counter_rng.bits(np.arange(size, dtype=np.int64), stream), kind="stable").astype(np.int32)


def _direction(stream: int) -> Floats:
    """Return the shared direction of the n-th user attribute and the n-th item attribute, which makes the two
    correlate.
    """
    direction: Floats = counter_rng.normals(np.arange(LATENT, dtype=np.int64), stream)[0]
    direction /= np.sqrt((direction**2).sum())
    return direction


def _attribute(latent: Floats, direction: Floats, law: Zipf, stream: int) -> NDArray[np.int64]:
    """Return a rank for each owner: a noisy view of one latent direction, distributed by the field's law."""
    noise = counter_rng.normals(np.arange(len(latent), dtype=np.int64), stream)[0]
    shown = _ATTRIBUTE_LOYALTY * (latent * direction).sum(axis=1) + np.sqrt(1 - _ATTRIBUTE_LOYALTY**2) * noise
    place = np.empty(len(latent))
    place[np.argsort(shown, kind="stable")] = (np.arange(len(latent)) + 0.5) / len(latent)
    return law.quantile(place)


def _match(person: Floats, items: Floats, rank: Index) -> Floats:
    dots: Floats = np.einsum("nk,nk->n", person, items.take(rank, axis=0, mode="clip"))
    dots *= np.float32(LATENT**-0.5)
    return dots
