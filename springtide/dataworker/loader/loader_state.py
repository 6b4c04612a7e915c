"""Pure. Convert a loader's state to plain values, and check that a state fits the loader.

In: `state_dict()` and `load_state_dict()` of loader.py. Out: a checked `LoaderPosition`. Next: sampler.py continues
there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from springtide import errors
from springtide.dataworker.loader.sampler import LoaderPosition

FORMAT = 1
Unit = Literal["samples", "batches", "batches read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderKind:
    """Meaning of a position: two loaders of equal kind have the same order."""

    unit: Unit
    """Unit of `LoaderPosition.done`: samples of an indexable data set, or batches of a user's sampler or a stream."""
    samples: int | None
    shuffle: bool


def written(kind: LoaderKind, place: LoaderPosition, seed: int) -> dict[str, Any]:
    """Return a state as plain values, for torch.save or JSON."""
    return {
        "format": FORMAT,
        "unit": kind.unit,
        "samples": kind.samples,
        "shuffle": kind.shuffle,
        "seed": seed,
        "epoch": place.epoch,
        "done": place.done,
        "mark": place.mark,
    }


def read(state: Mapping[str, Any], kind: LoaderKind) -> tuple[LoaderPosition, int]:
    """Return position and seed of a state. Raise an error if the state belongs to a different kind of loader."""
    given = state.get("format") if isinstance(state, Mapping) else type(state).__name__
    if given != FORMAT:
        raise errors.BadInput(
            f"this state has format {given!r}: wanted {FORMAT}, as ElasticLoader.state_dict() gives it. "
            "States of other loaders cannot be taken over"
        )
    for what, mine in (("unit", kind.unit), ("samples", kind.samples), ("shuffle", kind.shuffle)):
        if state.get(what) != mine:
            raise errors.BadInput(
                f"this state was saved by a loader with {what}={state.get(what)!r}, and is loaded into one with "
                f"{what}={mine!r}: going on would repeat some samples and lose others. Use the same data set, sampler "
                "and shuffle; batch size, ranks and number of workers may differ"
            )
    numbers = [state.get(what, 0 if what == "mark" else None) for what in ("epoch", "done", "mark", "seed")]
    if not all(isinstance(number, int) for number in numbers):
        raise errors.BadInput(
            f"this state has epoch {numbers[0]!r}, done {numbers[1]!r}, mark {numbers[2]!r}, seed {numbers[3]!r}: "
            "wanted whole numbers, as ElasticLoader.state_dict() gives them; was it changed on its way?"
        )
    *reached, seed = numbers
    place = LoaderPosition(*reached)
    if place.epoch < 0 or place.done < 0 or (kind.samples is not None and place.done > kind.samples):
        raise errors.BadInput(
            f"this state is at {place.done} {kind.unit} of epoch {place.epoch}: that is no place in it"
        )
    return place, seed
