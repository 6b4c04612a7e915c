"""Pure. Whole numbers that a user gives: anything else is refused by its name before something is made with it.

In: a value as it came, NumPy's integers too. Out: an int, or BadInput. Used where scripts hand over sizes and counts.
"""

import operator
from typing import Any

from springtide import errors

LARGEST = 2**63 - 1
SEED = "a whole number from 0 to 2^63 - 1"


def number(value: Any, name: str, wanted: str, *, least: int | None = 0, most: int = LARGEST) -> int:
    """`value` as an int; BadInput says `name` and what was `wanted`. True is no number; None is no bound."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool) or (least is not None and whole < least) or whole > most:
        raise errors.BadInput(f"{name}={value!r}: wanted {wanted}")
    return whole
