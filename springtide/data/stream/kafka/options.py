"""What librdkafka calls its options, and what a user is told of one that it does not take.

In: its own list of them, printed by the library that confluent-kafka brings; an error of it. Out: `BadInput`, with the
name that was probably meant, and never with a value: that may be a password. Next: client.py, librdkafka.py.
"""

import ctypes
import difflib
import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import confluent_kafka

from springtide import errors

_UNKNOWN = re.compile(r'No such configuration property: "([^"]+)"')


def library_file() -> str:
    """The librdkafka that confluent-kafka has loaded, or the system's; empty: there is none."""
    package = pathlib.Path(confluent_kafka.__file__).parent
    found = [*package.parent.glob("confluent_kafka.libs/librdkafka[-.]*"), *package.glob(".dylibs/librdkafka[-.]*")]
    return str(found[0]) if found else _installed()


@functools.cache
def known_options() -> tuple[str, ...]:
    """All names of options, as the library prints them in its table; none where it cannot be asked."""
    libc, text, size = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.c_size_t()
    try:
        show = ctypes.CDLL(library_file()).rd_kafka_conf_properties_show
        open_memory, close, free = libc.open_memstream, libc.fclose, libc.free
    except (AttributeError, OSError):
        return ()
    open_memory.restype = ctypes.c_void_p
    show.restype, show.argtypes = None, [ctypes.c_void_p]
    close.argtypes, free.argtypes = [ctypes.c_void_p], [ctypes.c_void_p]
    file = open_memory(ctypes.byref(text), ctypes.byref(size))
    if not file:
        return ()
    show(file)
    close(file)
    table = ctypes.string_at(text.value or 0, size.value).decode(errors="replace")
    free(text)
    rows = (line.split("|") for line in table.splitlines())
    return tuple(sorted({row[0].strip() for row in rows if len(row) > 3 and row[1].strip() in ("*", "C", "P")}))


def unfit(text: str, settings: Mapping[str, Any]) -> errors.BadInput:
    """An option that librdkafka does not take. It repeats a value that it does not like: that is not told."""
    if (unknown := _UNKNOWN.search(text)) is not None:
        name = unknown.group(1)
        near = difflib.get_close_matches(name, known_options(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "options are those of librdkafka's CONFIGURATION page"
        return errors.BadInput(f"the Kafka client knows no option {name!r}; {hint}")
    for name, value in settings.items():
        if isinstance(value, str) and len(value) > 2 and name not in ("bootstrap.servers", "client.id"):
            text = text.replace(value, "...")
    return errors.BadInput(
        f"the Kafka client does not take such an option: {text}; options are those of librdkafka's CONFIGURATION page"
    )


def _installed() -> str:
    """The one that the system has, for a confluent-kafka that was built here."""
    from ctypes import util

    return util.find_library("rdkafka") or ""
