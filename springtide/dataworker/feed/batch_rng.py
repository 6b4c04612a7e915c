"""Random numbers by the name of a batch: augmentations are the same, whoever makes the batch and however often.

In: a seed and a name (domain/data/data_workers.py). Out: torch's, NumPy's and Python's global generators (CPU) start
there while a block runs, and are restored afterwards. Next: worker.py and feed.py make batches with it;
dataworker/loader/custom_sampler.py draws with it.
"""

import ctypes
import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.random as np_random  # now: loaded on first use, it would cost every forked data worker a tenth of a second
import torch

MT19937_BYTES = 625 * 4  # 624 words and a position
States = tuple[torch.Tensor, Any, Any]


@contextmanager
def seeded(seed: int, name: Sequence[int] | None) -> Iterator[None]:
    """Inside, global random numbers are a function of (seed, name) alone; None: they are left as they are."""
    if name is None:
        yield
        return
    torchs, numpys, pythons = _states()
    sow(seed, name)
    seeded = _numpy.seeded()
    try:
        yield
    finally:
        torch.default_generator.set_state(torchs)
        _numpy.put_back(numpys, seeded)
        random.setstate(pythons)


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


def mark() -> Any:
    """Where all global random numbers are: equal to an earlier one where none was drawn since."""
    memory = _memory()
    numpys = ctypes.string_at(*memory) if memory is not None else repr(np_random.get_state(legacy=False))
    return torch.default_generator.get_state().numpy().tobytes(), numpys, random.getstate()


def sow(seed: int, name: Sequence[int], *, cuda: bool = False) -> None:
    """Global random numbers begin at (seed, name), and go on from there: for a process that has no others to keep."""
    written = ",".join(map(str, (seed, *name))).encode()
    words = hashlib.blake2b(written, digest_size=16).digest()
    torch.default_generator.manual_seed(int.from_bytes(words[:8], "little"))
    if cuda:
        torch.cuda.manual_seed_all(int.from_bytes(words[:8], "little"))
    if _memory() is not None:  # NumPy seeds no other kind of generator
        np_random.seed(int.from_bytes(words[8:12], "little"))
    random.seed(int.from_bytes(words[12:], "little"))


def _states() -> States:
    return torch.default_generator.get_state(), _numpy.state(), random.getstate()


def _put_back(states: States) -> None:
    torch.default_generator.set_state(states[0])
    np_random.set_state(states[1])
    random.setstate(states[2])


class _NumPy:
    """NumPy's global state takes it 0.3 ms to give and take, so where its memory has not changed it is not asked again.

    Its memory is the generator, but not the second normal deviate of a pair, which may be kept besides: while there is
    one, or another kind of generator, NumPy is asked.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, Any] | None = None
        """Memory and state of a moment when no deviate was kept."""

    def state(self) -> Any:
        """The state as it is."""
        memory = _memory()
        raw = ctypes.string_at(*memory) if memory is not None else b""
        if self._known is not None and self._known[0] == raw:
            return self._known[1]
        state: Any = np_random.get_state(legacy=False)
        self._known = (raw, state) if memory is not None and not state["has_gauss"] else None
        return state

    def seeded(self) -> bytes:
        """Its memory, just after it was seeded."""
        memory = _memory()
        return ctypes.string_at(*memory) if memory is not None else b""

    def put_back(self, state: Any, seeded: bytes) -> None:
        """Make it what it was before it was seeded."""
        memory = _memory()
        if memory is None or self._known is None or self._known[1] is not state or self.seeded() != seeded:
            np_random.set_state(state)
        else:  # nobody has drawn from it since
            ctypes.memmove(memory[0], self._known[0], memory[1])


def _memory() -> tuple[int, int] | None:
    """Where the global generator keeps its state, and how many bytes."""
    generator = np_random.get_bit_generator()  # type: ignore[attr-defined]  # since NumPy 1.24
    return (generator.ctypes.state_address, MT19937_BYTES) if type(generator) is np_random.MT19937 else None


_numpy = _NumPy()
