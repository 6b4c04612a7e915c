"""Pure. Amounts as a cluster writes them: 500m of a core, 4Gi of memory."""

from typing import Any

from springtide import errors

_UNITS = {
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
}  # fmt: skip


def read(value: Any) -> float:
    """A number: of 500m, 2, 4Gi, 1e9."""
    text = str(value).strip()
    try:
        for unit, size in _UNITS.items():
            if text.endswith(unit):
                return float(text.removesuffix(unit)) * size
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise errors.BadInput(f"quantity {text!r}: wanted a number and a unit, such as 500m or 4Gi") from None


def cpu(cores: float) -> str:
    """Thousandths of a core: nothing finer is granted."""
    return f"{max(1, round(cores * 1000))}m"


def memory(size: int) -> str:
    """Bytes, in the largest unit that says the same."""
    for unit, bytes_ in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size and size % bytes_ == 0:
            return f"{size // bytes_}{unit}"
    return str(size)
