"""Control messages survive encoding; other bytes are refused without harm."""

import asyncio

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from springtide import errors
from springtide.domain.data.leases import Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest
from springtide.rpc.messages.types import MemberReport
from springtide.rpc.transport import frames

calls = msgspec.msgpack.Decoder(messages.RequestFrame)

counts = st.integers(0, 2**40)
cards = st.builds(
    DatasetCard,
    samples=counts,
    batch_size=st.integers(1, 2**20),
    epochs=st.integers(1, 9),
    seed=counts,
    shuffle=st.booleans(),
)
reports = st.builds(
    MemberReport,
    step=counts,
    samples=counts,
    loss=st.none() | st.floats(allow_nan=False),
    metrics=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3),
)
words = st.lists(st.builds(Progress, counts, counts, counts, counts, counts), max_size=5).map(tuple)
failures = st.lists(st.builds(ReadFailure, counts, counts, counts, st.text(max_size=9)), max_size=2).map(tuple)
requests = st.one_of(
    st.builds(messages.ServerReady, address=st.text(max_size=30)),
    st.builds(messages.LeaseRequest, card=cards, progress=words, failures=failures),
    st.builds(messages.Heartbeat, report=st.none() | reports, progress=words),
    st.builds(ShareRequest, key=st.text(max_size=20), value=st.binary(max_size=200)),
    st.builds(messages.ScriptError, rank=counts, error=st.text(max_size=50), trace=st.text(max_size=50)),
    st.just(messages.StatusRequest()),
)


def read_all(data, limit=frames.MAX_BYTES):
    """Every message in the bytes, and how the stream ended."""

    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        try:
            while True:
                found.append(await frames.read(reader, calls, limit=limit))
        except (EOFError, frames.BadFrame) as end:
            return found, end

    return asyncio.run(run())


@given(st.lists(st.builds(messages.RequestFrame, counts, requests), max_size=5))
def test_packed_messages_are_read_back(sent):
    found, end = read_all(b"".join(frames.pack(call) for call in sent))
    assert found == sent
    assert isinstance(end, EOFError)


@given(st.binary(max_size=300))
def test_garbage_is_refused(data):
    _, end = read_all(data)
    assert isinstance(end, (frames.BadFrame, EOFError))


@given(st.builds(messages.RequestFrame, counts, requests), st.data())
def test_truncated_frame_is_detected(call, data):
    whole = frames.pack(call)
    found, end = read_all(whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert found == [] and isinstance(end, frames.BadFrame)


def test_length_over_the_limit_is_refused_before_reading():
    _, end = read_all(frames.LENGTH.pack(2**31) + b"x", limit=1024)
    assert "a frame of 2147483648 bytes; the limit is 1024" in str(end)


def test_message_too_large_to_send_is_refused_by_the_sender():
    with pytest.raises(errors.BadInput, match="over the control plane's limit"):
        frames.pack(ShareRequest("key", bytes(frames.MAX_BYTES)))


def test_value_of_the_wrong_type_is_refused():
    body = msgspec.msgpack.encode([1, {"type": "Heartbeat", "progress": "many"}])
    with pytest.raises(frames.BadFrame, match="Expected `array`, got `str`"):
        frames.unpack(body, calls)


def test_number_over_64_bits_is_refused_by_the_sender():
    with pytest.raises(errors.BadInput, match="does not fit into 64 bits"):
        frames.pack(messages.RequestFrame(1, messages.LeaseRequest(DatasetCard(samples=1, batch_size=1, seed=2**70))))
