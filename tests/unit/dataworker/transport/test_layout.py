"""Headers are cached for batches of equal layout and rebuilt for any difference."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.dataworker.transport import codec, layout
from springtide.domain.data.samples import Batch
from springtide.rpc.transport.frames import BadFrame


class Pair(NamedTuple):
    one: Any
    two: Any


@dataclass
class Row:
    one: Any
    two: Any


TYPES = codec.types_in([Pair(0, 0), Row(0, 0)])


def uncached_packing(tree: Any) -> codec.BatchMessage:
    """Pack leaf by leaf, without cached layouts."""
    packing = codec._Packing()
    node = packing.node(tree)
    header = msgspec.msgpack.encode(layout.Header(layout.VERSION, packing.size, node))
    return codec.BatchMessage(header, packing.pieces, packing.size, packing.keep)


laid_out: list[Any] = []


@pytest.fixture(autouse=True, scope="module", params=["natively", "tensor by tensor"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with and without DLPack's C functions, and count computed layouts."""
    remember = layout.remember

    def counted(*packed: Any) -> None:
        laid_out.append(packed)
        remember(*packed)

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tensor by tensor":
            patch.setattr(layout, "_FUNCTIONS", None)
        patch.setattr(layout, "remember", counted)
        layout.layouts.clear()
        layout._plan.cache_clear()
        yield
    layout.layouts.clear()
    layout._plan.cache_clear()


def misses() -> tuple[int, int]:
    return len(laid_out), layout._plan.cache_info().misses


def payload(message: codec.BatchMessage) -> bytearray:
    whole = message.copied().keep[0]
    return bytearray(whole.tobytes())


SHAPES = st.lists(st.integers(0, 3), max_size=3)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape, dtype=int))).reshape(shape).to(dtype),
    SHAPES,
    st.sampled_from([torch.int64, torch.float32, torch.bool, torch.bfloat16]),
)
TREES = st.recursive(
    TENSORS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4),
        st.lists(inner, min_size=1, max_size=4).map(tuple),
        st.dictionaries(st.text("ab", max_size=2), inner, min_size=1, max_size=3),
        st.builds(Batch, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Row, inner, inner),
    ),
    max_leaves=8,
)


@given(st.lists(TREES, min_size=1, max_size=6))
def test_cached_layout_equals_the_uncached_one_for_any_sequence(trees: list[Any]) -> None:
    for tree in trees + trees:
        packed, wanted = codec.pack(tree), uncached_packing(tree)
        assert (packed.header, packed.places, packed.size) == (wanted.header, wanted.pieces, wanted.size)
        assert [id(tensor) for tensor in packed.keep if tensor.nbytes] == [id(tensor) for tensor in wanted.keep]


def test_similar_batches_share_a_header_and_its_parsing() -> None:
    def draw(seed: int) -> Any:
        drawn = torch.Generator().manual_seed(seed)
        return Batch({"ids": torch.randint(0, 9, (5, 2), generator=drawn), "w": torch.rand(7)}, torch.rand(5))

    codec.unpack((first := codec.pack(draw(0))).header, payload(first))
    before = misses()
    for seed in range(5):
        message = codec.pack(sent := draw(seed))
        came = codec.unpack(bytes(bytearray(message.header)), payload(message))
        assert torch.equal(came.x["ids"], sent.x["ids"]) and torch.equal(came.y, sent.y)
    assert misses() == before


ALIKE = [
    [torch.zeros(4), torch.zeros(2)],
    [torch.zeros(2), torch.zeros(4)],
    (torch.zeros(4), torch.zeros(2)),
    Pair(torch.zeros(4), torch.zeros(2)),
    Row(torch.zeros(4), torch.zeros(2)),
    [[torch.zeros(4)], torch.zeros(2)],
    [torch.zeros(4), [torch.zeros(2)]],
    [torch.zeros(2, 2), torch.zeros(2)],
    [torch.zeros(4, dtype=torch.int32), torch.zeros(2)],
    {"a": torch.zeros(4), "b": torch.zeros(2)},
    {"b": torch.zeros(4), "a": torch.zeros(2)},
    {1: torch.zeros(4), 0: torch.zeros(2)},
    {True: torch.zeros(4), False: torch.zeros(2)},
    [torch.zeros(4), torch.zeros(2), torch.zeros(0)],
    [torch.zeros(4), torch.zeros(2), None],
    [torch.zeros(4), torch.zeros(2), -0.0],
    [torch.zeros(4), torch.zeros(2), 0.0],
    [torch.zeros(4), torch.zeros(2), []],
]


def test_slightly_different_trees_get_different_headers() -> None:
    headers = [codec.pack(tree).header for tree in ALIKE + ALIKE]
    assert len(set(headers)) == len(ALIKE)
    for tree, header in zip(ALIKE, headers, strict=False):
        made = codec.unpack(header, bytearray(1024), TYPES)
        assert type(made) is type(tree) and repr(made) == repr(tree)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "odd",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.arange(6)[::2],
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch._efficientzerotensor(3),
    ],
    ids=["transposed", "with steps", "conjugated", "negated", "zeros nobody wrote"],
)
def test_conjugate_or_negative_view_is_sent_by_value(odd: torch.Tensor) -> None:
    codec.pack([torch.empty(odd.shape, dtype=odd.dtype)])  # one that looks the same
    message = codec.pack([odd])
    assert torch.equal(codec.unpack(message.header, payload(message))[0], odd.resolve_conj().resolve_neg() + 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "unfit",
    [
        lambda: torch.zeros(3, requires_grad=True),
        lambda: torch.zeros(3, device="meta"),
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)]),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    ],
    ids=["grad", "meta", "coo", "csr", "nested", "quantized"],
)
def test_unsendable_tensor_is_refused_though_similar_ones_were_sent(unfit: Callable[[], torch.Tensor]) -> None:
    codec.pack({"x": torch.zeros(3)})
    with pytest.raises(errors.BadInput, match=r"batch\['x'\]"):
        codec.pack({"x": unfit()})


def test_number_of_cached_layouts_is_bounded() -> None:
    for rows in range(3 * layout.REMEMBERED):
        message = codec.pack([torch.zeros(rows + 1)])
        codec.unpack(message.header, payload(message))
    assert len(layout.layouts) == layout._plan.cache_info().currsize == layout.REMEMBERED


def test_long_headers_are_not_cached() -> None:
    message = codec.pack([torch.zeros(1)] * (layout.MOST_TENSORS + 1))
    assert len(message.header) > layout.LONGEST_HEADER
    before = misses()
    codec.pack(message.keep)
    assert len(codec.unpack(message.header, payload(message))) == layout.MOST_TENSORS + 1
    assert misses() == before


def test_inconsistent_header_is_refused_each_time() -> None:
    lie = msgspec.msgpack.encode(layout.Header(layout.VERSION, 64, layout.Tensor("float32", (17,), 0)))
    before = layout._plan.cache_info().currsize
    for _ in range(3):
        with pytest.raises(BadFrame, match="bytes 0 to 68 of a payload of 64"):
            codec.unpack(lie, bytearray(128))
    assert layout._plan.cache_info().currsize == before


def test_cached_header_is_checked_against_each_payload() -> None:
    message = codec.pack([torch.arange(100)])
    codec.unpack(message.header, bytearray(800))
    with pytest.raises(BadFrame, match="800 bytes, but 799 arrived"):
        codec.unpack(message.header, bytearray(799))


def test_cached_header_makes_only_types_known_to_the_receiver() -> None:
    message = codec.pack(Pair(torch.zeros(1), torch.zeros(1)))
    codec.unpack(message.header, bytearray(message.size), TYPES)
    with pytest.raises(errors.BadInput, match="Pair, which no batch of this process has held"):
        codec.unpack(message.header, bytearray(message.size))


def test_unpacking_a_cached_header_makes_new_containers() -> None:
    message = codec.pack({"x": [torch.zeros(2)], "names": ["a", "b"]})
    one, other = (codec.unpack(message.header, bytearray(message.size)) for _ in range(2))
    one["names"].append("c"), one["x"].clear(), one.pop("x")
    assert other["names"] == ["a", "b"] and len(other["x"]) == 1
    assert codec.unpack(message.header, bytearray(message.size))["names"] == ["a", "b"]


def test_saved_tensor_does_not_include_the_rest_of_its_batch() -> None:
    message = codec.pack([torch.zeros(4), torch.zeros(1 << 16)])
    small, _ = codec.unpack(message.header, payload(message))
    torch.save(small, written := io.BytesIO())
    assert small.untyped_storage().nbytes() == 16 and len(written.getvalue()) < 1 << 14
