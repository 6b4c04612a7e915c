"""Pure. Checks the sizes of a model before its layers are built.

In: arguments of a model of the zoo. Out: nothing, or one BadInput that names the argument.
"""

import numbers
from collections.abc import Sequence
from typing import Any

from springtide import errors


def check(model: str, *, filled: Sequence[str] = (), dropout: Any = 0.0, **sizes: Any) -> None:
    """Check that every size is an integer of at least 1, or a list of such; `filled` and `tables` may not be empty."""
    for name, value in sizes.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value and name in ("tables", *filled):
                raise errors.BadInput(f"{model}: {name} is empty; wanted at least one size")
            bad = [one for one in value if not is_size(one)]
            if bad:
                raise errors.BadInput(f"{model}: {name} has {bad[0]!r}; wanted integers of at least 1, as in [64, 32]")
        elif isinstance(value, numbers.Integral) and name in ("tables", *filled):
            raise errors.BadInput(f"{model}: {name} is {value!r}; wanted a list of integers, as in [{value!r}]")
        elif not is_size(value):
            raise errors.BadInput(f"{model}: {name} is {value!r}; wanted an integer of at least 1")
    if not isinstance(dropout, numbers.Real) or not 0 <= float(dropout) < 1:
        raise errors.BadInput(f"{model}: dropout is {dropout!r}; wanted a share of at least 0 and below 1")


def is_size(value: Any) -> bool:
    """Return True for an integer of at least 1; the bool True does not count."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 1
