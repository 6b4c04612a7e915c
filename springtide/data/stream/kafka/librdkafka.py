"""Reads Kafka messages through librdkafka directly, for speed; confluent-kafka ships the library.

In: settings, and partitions with offsets. Out: columns of records. Native code (cpp/batch/message_columns.h) builds the
columns without a Python object per record, and without the GIL, which the training loop needs. Next: stream.py.
"""

import ctypes
import ctypes.util
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np

from springtide import _native, errors
from springtide.data.stream.records import Records

_UNKNOWN = re.compile(r'No such configuration property: "([^"]+)"')
OPTIONS = "supported options are on librdkafka's CONFIGURATION page"


def unfit(text: str, settings: Mapping[str, Any]) -> errors.BadInput:
    """Return the error for an option that librdkafka refuses. The error hides the option's value, because librdkafka's
    own message would show it.
    """
    if (unknown := _UNKNOWN.search(text)) is not None:
        return errors.BadInput(f"the Kafka client knows no option {unknown.group(1)!r}; {OPTIONS}")
    for name, value in settings.items():
        if isinstance(value, str) and len(value) > 2 and name not in ("bootstrap.servers", "client.id"):
            text = text.replace(value, "...")
    return errors.BadInput(f"the Kafka client refuses an option: {text}; {OPTIONS}")


CONSUMER = 1
ROOM = 512  # size of the buffer for an error text, in bytes
OUTDATED = -1001  # RD_KAFKA_OFFSET_INVALID
Tell = Callable[[int, str], None]
_Told = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_Long = ctypes.POINTER(ctypes.c_int64)
_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "conf_new": (_POINTER, []),
    "conf_destroy": (None, [_POINTER]),
    "conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "conf_set_error_cb": (None, [_POINTER, _Told]),
    "new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "poll_set_consumer": (_INT, [_POINTER]),
    "queue_get_consumer": (_POINTER, [_POINTER]),
    "queue_destroy": (None, [_POINTER]),
    "consumer_close": (_INT, [_POINTER]),
    "destroy": (None, [_POINTER]),
    "topic_partition_list_new": (_POINTER, [_INT]),
    "topic_partition_list_add": (_POINTER, [_POINTER, _TEXT, ctypes.c_int32]),
    "topic_partition_list_set_offset": (_INT, [_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64]),
    "topic_partition_list_destroy": (None, [_POINTER]),
    "incremental_assign": (_POINTER, [_POINTER, _POINTER]),
    "incremental_unassign": (_POINTER, [_POINTER, _POINTER]),
    "error_string": (_TEXT, [_POINTER]),
    "error_destroy": (None, [_POINTER]),
    "get_watermark_offsets": (_INT, [_POINTER, _TEXT, ctypes.c_int32, _Long, _Long]),
    "query_watermark_offsets": (_INT, [_POINTER, _TEXT, ctypes.c_int32, _Long, _Long, _INT]),
    "err2str": (_TEXT, [_INT]),
}


class PartitionNotice(NamedTuple):
    """An event in place of a record: the end of a partition, or an error."""

    partition: int
    code: int
    offset: int


class BrokerQueryFailed(Exception):
    """Error for a query that the broker did not answer; `code` gives the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Library:
    """Functions of librdkafka by name, and addresses of the functions that native code calls."""

    def __init__(self, file: str) -> None:
        loaded = ctypes.CDLL(file)
        for name, (result, arguments) in _CALLS.items():
            call = getattr(loaded, f"rd_kafka_{name}")
            call.restype, call.argtypes = result, arguments
            setattr(self, name, call)
        native = ("consume_batch_queue", "message_timestamp", "message_destroy")
        self.places = [_address(getattr(loaded, f"rd_kafka_{name}")) for name in native]

    def __getattr__(self, name: str) -> Any:  # for the type checker: __init__ sets all functions
        raise AttributeError(name)

    def text(self, code: int) -> str:
        text: bytes = self.err2str(code)
        return text.decode(errors="replace")


@functools.cache
def library() -> Library:
    """Load confluent-kafka's librdkafka, or the system's if confluent-kafka was built from source."""
    package = pathlib.Path(confluent_kafka.__file__).parent
    shipped = next(package.parent.glob("confluent_kafka.libs/librdkafka[-.]*"), None)
    name = str(shipped) if shipped is not None else ctypes.util.find_library("rdkafka")
    if not name:
        raise errors.MissingExtra("reading kafka:// streams: no librdkafka beside confluent-kafka, so it", "kafka")
    return Library(name)


class RawConsumer:
    """A consumer of a topic without a group. For a single thread."""

    def __init__(self, topic: str, settings: Mapping[str, Any], tell: Tell) -> None:
        """Create the consumer. BadInput names a setting that librdkafka refuses, but not its value."""
        self._lib = library()
        self._topic = topic.encode()
        self._tell = _Told(lambda _, code, reason, __: tell(code, (reason or b"").decode(errors="replace")))
        self._it = self._new(settings)
        self._lib.poll_set_consumer(self._it)
        self._queue = self._lib.queue_get_consumer(self._it)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._change(self._lib.incremental_assign, offsets)

    def unassign(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions, and drop the records that were fetched from them."""
        self._change(self._lib.incremental_unassign, dict.fromkeys(partitions, OUTDATED))

    def consume(self, most: int, timeout_s: float) -> tuple[dict[int, Records], list[PartitionNotice]]:
        """Return the available records, about `most`; wait if there are none."""
        runs, news = _native.consume_messages(self._lib.places, self._queue, most, round(1000 * timeout_s))
        return {run[0]: _records(*run[1:]) for run in runs}, [PartitionNotice(*notice) for notice in news]

    def known_end(self, partition: int) -> int | None:
        """Return a partition's end offset (newest + 1), as known from the last fetch."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = self._lib.get_watermark_offsets(self._it, self._topic, partition, low, high)
        return None if code or high.value < 0 else high.value

    def bounds(self, partition: int, timeout_s: float) -> tuple[int, int]:
        """Ask the broker for the oldest offset and the end offset (newest + 1)."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = self._lib.query_watermark_offsets(self._it, self._topic, partition, low, high, round(1000 * timeout_s))
        if code:
            raise BrokerQueryFailed(code, self._lib.text(code))
        return low.value, high.value

    def text(self, code: int) -> str:
        return self._lib.text(code)

    def close(self) -> None:
        self._lib.queue_destroy(self._queue)
        self._lib.consumer_close(self._it)
        self._lib.destroy(self._it)

    def _new(self, settings: Mapping[str, Any]) -> int:
        lib, why = self._lib, ctypes.create_string_buffer(ROOM)
        conf = lib.conf_new()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.conf_set(conf, name.encode(), text.encode(), why, ROOM):
                lib.conf_destroy(conf)
                raise unfit(why.value.decode(errors="replace"), settings)
        lib.conf_set_error_cb(conf, self._tell)
        made: int | None = lib.new(CONSUMER, conf, why, ROOM)
        if not made:
            lib.conf_destroy(conf)
            raise unfit(why.value.decode(errors="replace"), settings)
        return made

    def _change(self, call: Any, offsets: Mapping[int, int]) -> None:
        lib = self._lib
        places = lib.topic_partition_list_new(len(offsets))
        for partition, offset in offsets.items():
            lib.topic_partition_list_add(places, self._topic, partition)
            lib.topic_partition_list_set_offset(places, self._topic, partition, offset)
        failed = call(self._it, places)
        lib.topic_partition_list_destroy(places)
        if failed:
            text = lib.error_string(failed).decode(errors="replace")
            lib.error_destroy(failed)
            raise errors.SpringtideError(f"librdkafka refuses partitions {sorted(offsets)}: {text}")


def _records(payload: Any, ends: Any, offsets: Any, times: Any) -> Records:
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    return Records(payload, starts, ends, offsets, times)


def _address(call: Any) -> int:
    return ctypes.cast(call, ctypes.c_void_p).value or 0
