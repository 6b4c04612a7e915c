"""Seeds the global random generators by batch name, so that a batch always gets the same augmentations.

In: a seed and a batch name. Out: inside a `with` block, the CPU generators of torch, NumPy and Python start from this
seed, and are restored afterwards. The content of a batch does not depend on the process that makes it, or on the number
of tries.
"""

import ctypes
import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.random as np_random  # imported at the top: a lazy import would cost every forked data worker 0.1 s
import torch

MT19937_BYTES = 625 * 4  # 624 words and a position
States = tuple[torch.Tensor, Any, Any]


@contextmanager
def seeded(seed: int, name: Sequence[int] | None) -> Iterator[None]:
    """Inside the block, make global random numbers a function of (seed, name). With name None, change nothing."""
    if name is None:
        yield
        return
    torchs, numpys, pythons = _states()
    sow(seed, name)
    seeded = _raw()
    try:
        yield
    finally:
        torch.default_generator.set_state(torchs)
        _numpy.put_back(numpys, seeded)
        random.setstate(pythons)


class Strand:
    """A separate sequence of random numbers. Each entry into the context continues the sequence."""

    def __init__(self, seed: int, name: Sequence[int]) -> None:
        before = _states()
        sow(seed, name)
        self._own = _states()
        _put_back(before)

    @contextmanager
    def on(self) -> Iterator[None]:
        before = _states()
        _put_back(self._own)
        try:
            yield
        finally:
            self._own = _states()
            _put_back(before)


def mark() -> Any:
    """Return the positions of all global generators. If two results are equal, no number was drawn in between."""
    numpys = _raw() or repr(np_random.get_state(legacy=False))
    return torch.default_generator.get_state().numpy().tobytes(), numpys, random.getstate()


def sow(seed: int, name: Sequence[int], *, cuda: bool = False) -> None:
    """Seed the global generators from (seed, name) permanently."""
    written = ",".join(map(str, (seed, *name))).encode()
    words = hashlib.blake2b(written, digest_size=16).digest()
    torch.default_generator.manual_seed(int.from_bytes(words[:8], "little"))
    if cuda:
        torch.cuda.manual_seed_all(int.from_bytes(words[:8], "little"))
    if _memory() is not None:  # only if the global generator is MT19937, because NumPy cannot seed another kind
        np_random.seed(int.from_bytes(words[8:12], "little"))
    random.seed(int.from_bytes(words[12:], "little"))


def _states() -> States:
    return torch.default_generator.get_state(), _numpy.state(), random.getstate()


def _put_back(states: States) -> None:
    torch.default_generator.set_state(states[0])
    np_random.set_state(states[1])
    random.setstate(states[2])


class _NumPy:
    """Fast save and restore of NumPy's global random state.

    NumPy needs 0.3 ms to get or set its state. If the generator's memory has not changed since the last read, this
    class reuses the state that it read then. The class must ask NumPy for the state in two cases: NumPy holds the
    second normal deviate of a pair, which NumPy stores outside the generator's memory, or the global generator is not a
    Mersenne Twister.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, Any] | None = None
        """Memory and state at a time when NumPy held no second deviate."""

    def state(self) -> Any:
        raw = _raw()
        if self._known is not None and self._known[0] == raw:
            return self._known[1]
        state: Any = np_random.get_state(legacy=False)
        self._known = (raw, state) if raw and not state["has_gauss"] else None
        return state

    def put_back(self, state: Any, seeded: bytes) -> None:
        memory = _memory()
        if memory is None or self._known is None or self._known[1] is not state or _raw() != seeded:
            np_random.set_state(state)
        else:  # the memory is unchanged, so no number was drawn since seeding
            ctypes.memmove(memory[0], self._known[0], memory[1])


def _memory() -> tuple[int, int] | None:
    generator = np_random.get_bit_generator()  # type: ignore[attr-defined]  # since NumPy 1.24
    return (generator.ctypes.state_address, MT19937_BYTES) if type(generator) is np_random.MT19937 else None


def _raw() -> bytes:
    """Return the memory of NumPy's global generator; return an empty value if the generator is not MT19937."""
    memory = _memory()
    return ctypes.string_at(*memory) if memory is not None else b""


_numpy = _NumPy()
