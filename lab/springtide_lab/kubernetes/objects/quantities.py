"""Pure. Quantities as objects write them: `500m`, `2`, `1.5Gi`, `128M`, `1e3`."""

import re

_TEXT = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
SCALE = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


def number(quantity: object) -> float:
    """Its value; ValueError where it is none."""
    found = _TEXT.fullmatch(str(quantity).strip())
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    if found[2]:
        return float(found[1]) * 10.0 ** int(found[2])
    return float(found[1]) * SCALE[found[3] or ""]


def is_quantity(quantity: object) -> bool:
    try:
        number(quantity)
    except ValueError:
        return False
    return True
