"""Frames: lengths, limits, and what a reader does with bytes that are no message."""

import asyncio

import msgspec
import pytest

from springtide import errors
from springtide.rpc.transport import frames

TEXT = msgspec.msgpack.Decoder(str)


def read(data, *, limit=frames.MAX_BYTES, ended=True):
    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        if ended:
            reader.feed_eof()
        return await frames.read(reader, TEXT, limit=limit)

    return asyncio.run(run())


def test_frame_is_four_bytes_of_length_and_the_message():
    assert frames.pack("word") == b"\x00\x00\x00\x05\xa4word"
    assert read(frames.pack("word")) == "word"


def test_reader_takes_exactly_one_frame():
    assert read(frames.pack("first") + frames.pack("second")) == "first"


def test_message_of_exactly_the_limit_passes_and_a_longer_one_is_refused():
    size = len(msgspec.msgpack.encode("word"))
    assert read(frames.pack("word", limit=size), limit=size) == "word"
    with pytest.raises(errors.BadInput, match=f"str of {size} bytes is over the control plane's limit of {size - 1}"):
        frames.pack("word", limit=size - 1)
    with pytest.raises(frames.BadFrame, match=f"announced a frame of {size} bytes; the limit is {size - 1}"):
        read(frames.pack("word"), limit=size - 1)


def test_announced_size_is_refused_before_its_bytes_arrive():
    with pytest.raises(frames.BadFrame, match="announced a frame of 4294967295 bytes"):
        read(b"\xff\xff\xff\xff", ended=False)


def test_largest_frame_is_16_mib():
    frames.pack(bytes(2**24 - 5))
    with pytest.raises(errors.BadInput, match="bytes of 16777217 bytes"):
        frames.pack(bytes(2**24 - 4))


def test_number_above_64_bits_is_refused_by_the_sender():
    with pytest.raises(errors.BadInput, match="does not fit into 64 bits"):
        frames.pack(2**64)


def test_end_between_frames_differs_from_an_end_within_one():
    with pytest.raises(EOFError, match="the other side closed the connection"):
        read(b"")
    for part in (1, 4, 6):
        with pytest.raises(frames.BadFrame, match="within a frame"):
            read(frames.pack("word")[:part])


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode(1), b"\xa1\xff"])
def test_bytes_that_are_no_message_are_refused(body):
    with pytest.raises(frames.BadFrame, match="not a message"):
        read(frames.LENGTH.pack(len(body)) + body)
