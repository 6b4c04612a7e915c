"""Random numbers by the name of a batch: whoever makes it, and however often, augmentations come out the same.

In: a seed and a name (domain/feeding.py). Out: torch's, NumPy's and Python's global generators (CPU) begin there while
a block runs, and are put back afterwards. Next: serving.py and feed.py make batches so; own_sampler.py draws so.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.random as np_random  # now: loaded on first use, it would cost every forked data worker a tenth of a second
import torch

States = tuple[torch.Tensor, Any, Any]


@contextmanager
def seeded(seed: int, name: Sequence[int] | None) -> Iterator[None]:
    """Inside, global random numbers are a function of (seed, name) alone; None: they are left as they are."""
    if name is None:
        yield
        return
    before = _states()
    sow(seed, name)
    try:
        yield
    finally:
        _put_back(before)


class Strand:
    """Random numbers for one purpose: they go on where they were left each time it is entered."""

    def __init__(self, seed: int, name: Sequence[int]) -> None:
        before = _states()
        sow(seed, name)
        self._own = _states()
        _put_back(before)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, global random numbers are these."""
        before = _states()
        _put_back(self._own)
        try:
            yield
        finally:
            self._own = _states()
            _put_back(before)


def sow(seed: int, name: Sequence[int], *, cuda: bool = False) -> None:
    """Global random numbers begin at (seed, name), and go on from there: for a process that has no others to keep."""
    words = np_random.SeedSequence([abs(seed), int(seed < 0), *(abs(part) for part in name)]).generate_state(4)
    torch.default_generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    if cuda:
        torch.cuda.manual_seed_all(int(words[0]) << 32 | int(words[1]))
    np_random.seed(int(words[2]))
    random.seed(int(words[3]))


def _states() -> States:
    return torch.default_generator.get_state(), np_random.get_state(), random.getstate()


def _put_back(states: States) -> None:
    torch.default_generator.set_state(states[0])
    np_random.set_state(states[1])
    random.setstate(states[2])
