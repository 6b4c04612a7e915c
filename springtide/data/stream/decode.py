"""Decodes records into batches: fixed-width fields, JSON, or a user function of a list of bytes.

In: record bodies that data/stream/record_filter.py found intact. Out: tensors by name, or the result of the user
function. An undecodable record becomes a dead letter, and the other records still form their batch. The decision
depends on the records alone, so every reader of a batch drops the same records.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from springtide import errors
from springtide.data.stream.records import Floats, Mask, Records
from springtide.domain.core.validation import takes_numbers

__all__ = ["Field", "Fixed", "Json"]

Field = str | tuple[str, int] | tuple[str, tuple[int, ...]]
"""A NumPy type such as "f4" or "i8", or a pair of a type and a length or shape."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
KINDS = ("i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "?")
MISTAKES = (NameError, AttributeError, ImportError, SyntaxError, MemoryError)
"""Errors that point to a mistake in the code, not in a record. If a user function raises such an error, the job
ends."""


class ParsedRecords(NamedTuple):
    """Parsed bodies of records."""

    bad: Mask
    """Mask of the records that cannot be decoded."""
    event_at: Floats | None
    batch: Callable[[Mask], Any]
    """Function that makes a batch of the selected good records. Raises `UndecodableRecords` if some records are bad."""


class Decoder(Protocol):
    """Converter from bodies to batches."""

    def parse(self, bodies: Records) -> ParsedRecords: ...


class UndecodableRecords(Exception):
    """Error for a batch with undecodable records. `bad` is a mask over all parsed records."""

    def __init__(self, bad: Mask, why: str) -> None:
        super().__init__(why)
        self.bad = bad


def decoder_of(decode: "Decoder | Callable[[list[bytes]], Any]") -> Decoder:
    """Return a decoder unchanged; wrap a user function."""
    return decode if hasattr(decode, "parse") else FunctionDecoder(decode)


class Fixed:
    """Decoder for records of a fixed width: fields in order without gaps, like a packed C struct.

    ``Fixed({"dense": ("f4", 13), "ids": ("i8", 26), "label": "f4"})`` makes batches
    ``{"dense": Tensor[n, 13], "ids": Tensor[n, 26], "label": Tensor[n]}``.
    If `to` is given, the batch is the result of `to` on this dict.
    """

    @takes_numbers("self", "to")
    def __init__(
        self,
        fields: Mapping[str, Field],
        *,
        event_time: str | None = None,
        unit: str = "s",
        to: Callable[[dict[str, torch.Tensor]], Any] | None = None,
    ) -> None:
        """`event_time` names the field with the event time, in `unit`s since 1970 ("s", "ms", "us")."""
        self.dtype = np.dtype([(name, *_type_of(name, kind)) for name, kind in fields.items()])
        self.event_time, self.scale, self.to = event_time, _scale_of(fields, event_time, unit), to

    def parse(self, bodies: Records) -> ParsedRecords:
        """Parse the bodies; records of another width are bad."""
        rows, bad = bodies.structs(self.dtype), np.zeros(len(bodies), np.bool_)
        if rows is None:
            bad = bodies.sizes != self.dtype.itemsize
            rows = np.frombuffer(bodies[~bad].joined(), self.dtype)
        good: NDArray[Any] = rows
        times = None
        if self.event_time is not None:
            times = np.full(len(bad), np.nan)
            times[~bad] = good[self.event_time] * self.scale

        def batch(keep: Mask) -> Any:
            chosen = good if keep.all() else good[keep[~bad]]
            tensors = {name: torch.from_numpy(_native(chosen[name])) for name in self.dtype.names or ()}
            return tensors if self.to is None else self.to(tensors)

        return ParsedRecords(bad, times, batch)


class Json:
    """Decoder for records that are JSON objects. The given fields become columns; the type "str" keeps strings, as a
    list."""

    @takes_numbers("self", "to")
    def __init__(
        self,
        fields: Mapping[str, Field],
        *,
        event_time: str | None = None,
        unit: str = "s",
        to: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        """`event_time` is the key of the event time, in `unit`s since 1970; this key need not be in `fields`."""
        self.fields = {name: None if kind == "str" else _type_of(name, kind) for name, kind in fields.items()}
        self.event_time, self.to = event_time, to
        self.scale = _scale_of({**fields, event_time or "": "f8"}, event_time, unit)

    def parse(self, bodies: Records) -> ParsedRecords:
        """Parse the bodies. A record is bad if it is not a JSON object, lacks a field, or has a value of another
        type."""
        rows = [self._row(body) for body in bodies.bodies()]
        times = (np.nan if row is None else row[""] for row in rows)

        def batch(keep: Mask) -> Any:
            chosen = [row for row, kept in zip(rows, keep.tolist(), strict=True) if kept and row is not None]
            columns = {
                name: [row[name] for row in chosen]
                if kind is None
                else torch.from_numpy(np.array([row[name] for row in chosen], kind[0]).reshape(len(chosen), *kind[1]))
                for name, kind in self.fields.items()
            }
            return columns if self.to is None else self.to(columns)

        return ParsedRecords(
            np.fromiter((row is None for row in rows), np.bool_, len(rows)),
            None if self.event_time is None else np.fromiter(times, np.float64, len(rows)),
            batch,
        )

    def _row(self, body: bytes) -> dict[str, Any] | None:
        try:
            decoded = msgspec.json.decode(body)
            row = {name: _column(decoded[name], kind) for name, kind in self.fields.items()}
            row[""] = float(decoded[self.event_time]) * self.scale if self.event_time else np.nan
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, OverflowError):
            return None
        return row


class FunctionDecoder:
    """Decoder that wraps a user function of a list of bytes. If the function raises, the decoder tries each record
    alone."""

    def __init__(self, function: Callable[[list[bytes]], Any]) -> None:
        self.function = function

    def parse(self, bodies: Records) -> ParsedRecords:
        def batch(keep: Mask) -> Any:
            chosen = bodies[keep].bodies()
            error = self._fails(chosen)
            if not isinstance(error, Exception):
                return error[0]
            bad = np.zeros(len(bodies), np.bool_)
            bad[np.flatnonzero(keep)] = [isinstance(self._fails([body]), Exception) for body in chosen]
            if not bad.any():
                raise errors.UserCodeFailed(
                    f"decode raised {type(error).__name__}: {error}, for {len(chosen)} records together but for none "
                    "of them alone; whether a record decodes must not depend on the other records"
                ) from error
            raise UndecodableRecords(bad, f"{type(error).__name__}: {error}")

        return ParsedRecords(np.zeros(len(bodies), np.bool_), None, batch)

    def _fails(self, chosen: list[bytes]) -> Exception | tuple[Any]:
        try:
            return (self.function(chosen),)
        except MISTAKES as error:
            raise errors.UserCodeFailed(f"decode raised {type(error).__name__}: {error}") from error
        except errors.UserError:
            raise
        except Exception as error:
            return error


def _type_of(name: str, kind: Field) -> tuple[np.dtype[Any], tuple[int, ...]]:
    code, shape = (kind, ()) if isinstance(kind, str) else kind
    try:
        dtype = np.dtype(code)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.str[1:] not in {np.dtype(known).str[1:] for known in KINDS}:
        raise errors.BadInput(f"field {name!r} is of type {code!r}; tensors are of {', '.join(KINDS)}")
    return dtype, (shape,) if isinstance(shape, int) else tuple(shape)


def _scale_of(fields: Mapping[str, Any], event_time: str | None, unit: str) -> float:
    if unit not in UNITS:
        raise errors.UnknownName("unit of time", unit, UNITS)
    if event_time is not None and event_time not in fields:
        raise errors.UnknownName("field", event_time, fields)
    return UNITS[unit]


def _native(column: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in this machine's byte order."""
    return np.array(column, column.dtype.newbyteorder("="), order="C", copy=True)


def _column(value: Any, kind: tuple[np.dtype[Any], tuple[int, ...]] | None) -> Any:
    if kind is None:
        if not isinstance(value, str):
            raise TypeError
        return value
    dtype, shape = kind
    array = np.asarray(value)
    if array.dtype.kind not in "iufb" or array.shape != shape:
        raise TypeError
    if dtype.kind in "iu" and (array.dtype.kind == "f" or not _fits(array, dtype)):
        raise ValueError
    return array if shape else value


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)
