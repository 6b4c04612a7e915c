"""A stream by its URL: log:///path/to/folder, kafka://host:port[,host:port]/topic?option=value.

In: `springtide.stream(url)`, `springtide produce URL`. Out: a base.Stream. Back ends are imported when asked for.
"""

import importlib
from urllib.parse import urlsplit

from springtide import errors
from springtide.data.stream.stream import Stream

KINDS = {"log": "springtide.data.stream.log.stream", "kafka": "springtide.data.stream.kafka.stream"}
"""Scheme of a URL, and the module whose `open_url(url)` makes the stream."""


def open_stream(url: str) -> Stream:
    """The stream at this URL. UserError when there is none."""
    scheme = urlsplit(url).scheme
    if not scheme or "://" not in url:
        raise errors.BadInput(
            f"{url!r} is no stream: give a URL such as log:///path/to/folder or kafka://host:9092/topic"
        )
    if scheme not in KINDS:
        raise errors.UnknownName("kind of stream", scheme, KINDS)
    stream: Stream = importlib.import_module(KINDS[scheme]).open_url(url)
    return stream
