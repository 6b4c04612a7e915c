"""Damaged bytes and damaged values: what a disk, a bug or a stranger could make of something correct."""

from typing import Any

from hypothesis import strategies as st

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([-1, 0, 1, 2**31, 2**32, 2**62, 2**63 - 1]),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with some changes: flipped, cut, inserted, repeated."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        match draw(st.sampled_from(["flip", "byte", "cut", "insert", "repeat", "drop"])):
            case "flip" if changed:
                changed[at] ^= 1 << draw(st.integers(0, 7))
            case "byte" if changed:
                changed[at] = draw(st.integers(0, 255))
            case "cut":
                del changed[at:]
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "repeat":
                changed[at:at] = changed[at : at + draw(st.integers(1, 64))]
            case _:
                del changed[at : at + draw(st.integers(1, 16))]
    return bytes(changed)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A value of which one part, at any depth, is another value, missing, or twice there."""
    inner = value if isinstance(value, (dict, list)) else None
    if not inner or draw(st.integers(0, 5)) == 0:
        return draw(ODD)
    which = draw(st.integers(0, len(inner) - 1))
    if isinstance(inner, dict):
        key = list(inner)[which]
        how = draw(st.integers(0, 9))
        if how == 0:
            return {name: part for name, part in inner.items() if name != key}
        if how == 1:
            return {**inner, draw(st.text(max_size=4)): draw(ODD)}
        return {**inner, key: draw(altered(inner[key]))}
    if draw(st.integers(0, 9)) == 0:
        return inner[:which] + inner[which:] * draw(st.sampled_from([0, 2]))
    return [*inner[:which], draw(altered(inner[which])), *inner[which + 1 :]]
