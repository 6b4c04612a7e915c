"""State images: layout, filling, reading, and detection of damage."""

import collections
import concurrent.futures
import io
import math
import pathlib
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from springtide import errors
from springtide.checkpoint.checkpointer import saver, state_image


def filled(path: pathlib.Path, state: object, *, step: int = 7, sequence: int = 1, threads: int = 2) -> bytes:
    plan = state_image.plan_image(state, step=step, sequence=sequence)
    image = state_image.ImageFile(path)
    with concurrent.futures.ThreadPoolExecutor(threads) as copiers:
        image.fill(plan, copiers, threads)
    image.close()
    return path.read_bytes()[: plan.head.image_bytes]


@given(some.integers(0, 2**31), some.integers(0, 2**62), some.integers(1, 2**62), some.integers(-(2**62), 2**62))
def test_image_head_survives_encoding(index: int, image: int, sequence: int, step: int) -> None:
    head = saver.ImageHead(index, image, sequence, step, 5)

    assert saver.decode_head(saver.encode_head(head)) == head


@given(some.integers(0, 63), some.integers(1, 255))
def test_any_changed_byte_of_a_head_is_detected(at: int, by: int) -> None:
    data = bytearray(saver.encode_head(saver.ImageHead(10, 100, 1, 7, 5)))
    data[at] ^= by

    with pytest.raises(errors.BadInput):
        saver.decode_head(bytes(data))


def test_views_strides_and_odd_sizes_are_copied_exactly(tmp_path: pathlib.Path) -> None:
    base = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    state = {
        "transposed": base.t(),
        "strided": base[::3, 1::2],
        "expanded": torch.ones(1).expand(4, 5),
        "empty": base[:0],
        "scalar": torch.tensor(3.5),
        "bool": base > 0,
        "half": base.half(),
        "conj": torch.complex(base, base).conj(),
        "large": torch.arange(3 * state_image.PIECE // 8 + 5),
    }
    head, back, _ = state_image.read_image(io.BytesIO(filled(tmp_path / "a.image", state)))

    assert head.step == 7
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor), name


@given(some.lists(some.lists(some.integers(0, 2), max_size=9), max_size=20), some.text(max_size=300))
def test_index_of_any_length_ends_before_the_tensors(shapes: list[list[int]], word: str) -> None:
    state = {"word": word, "tensors": [torch.zeros(shape, dtype=torch.float8_e4m3fnuz) for shape in shapes]}
    plan = state_image.plan_image(state, step=2**60, sequence=2**60)

    ends = [saver.BYTES + len(plan.index), *(place.offset + place.size for place in plan.places)]
    begins = [*(place.offset for place in plan.places), plan.head.image_bytes]
    assert all(end <= begin for end, begin in zip(ends, begins, strict=True))


def test_failed_image_fill_leaves_no_thread_writing(tmp_path: pathlib.Path) -> None:
    state = {"large": torch.ones(8 * state_image.PIECE // 4), "small": torch.ones(3)}
    plan = state_image.plan_image(state, step=1, sequence=1)
    plan = msgspec.structs.replace(plan, tensors=(plan.tensors[0], None))  # what cannot be copied after all
    image = state_image.ImageFile(tmp_path / "a.image")
    with concurrent.futures.ThreadPoolExecutor(2) as copiers:
        with pytest.raises(AttributeError):
            image.fill(plan, copiers, 2)
        image.path.write_bytes(bytes(plan.head.image_bytes))
    assert not any(image.path.read_bytes())
    image.close()


def test_truncated_image_is_refused(tmp_path: pathlib.Path) -> None:
    data = filled(tmp_path / "a.image", {"x": torch.arange(1000)})

    for length in (10, 70, 200, len(data) - 1):
        with pytest.raises(errors.BadInput):
            state_image.read_image(io.BytesIO(data[:length]))


def test_image_being_filled_is_not_complete(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.image"
    filled(path, {"x": torch.ones(1000)})
    filled(path, {"x": torch.ones(1200)}, sequence=2)
    assert [head.sequence for head, _ in saver.whole_images(tmp_path)] == [2]

    with open(path, "r+b") as file:  # as a process killed while it copies would leave it
        file.write(bytes(saver.BYTES))
    assert saver.whole_images(tmp_path) == []


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
tensors = some.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    some.lists(some.integers(0, 3), max_size=3),
    some.sampled_from(DTYPES),
)
keys = some.one_of(some.text(max_size=4), some.integers(), some.tuples(some.integers(-9, 9), some.booleans()))
leaves = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(allow_nan=False),
    some.text(max_size=8),
    some.binary(max_size=8),
    tensors,
    some.sampled_from(DTYPES),
    some.builds(torch.Size, some.lists(some.integers(0, 5))),
)
states = some.recursive(
    leaves,
    lambda inner: some.one_of(
        some.lists(inner, max_size=3),
        some.lists(inner, max_size=3).map(tuple),
        some.dictionaries(keys, inner, max_size=3),
        some.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        some.sets(some.integers(), max_size=3),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(states)
def test_state_survives_splitting_and_joining(state: Any) -> None:
    taken = state_image.split_state(state)

    assert same(state_image.join_state(*taken), state)


def test_numpy_arrays_scalars_and_generator_states_survive() -> None:
    state = {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(1.5),
        "rng": np.random.RandomState(3).get_state(),
    }
    taken = state_image.split_state(state)
    back = state_image.join_state(*taken)

    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["scalar"] == 1.5 and type(back["scalar"]) is np.float32
    np.random.RandomState().set_state(back["rng"])


def test_state_of_a_scheduler_with_milestones_survives() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    taken = state_image.split_state(scheduler.state_dict())
    scheduler.load_state_dict(state_image.join_state(*taken))

    assert type(scheduler.milestones) is collections.Counter


def test_tied_tensors_are_stored_once_and_stay_tied() -> None:
    weight = torch.ones(3)
    taken = state_image.split_state({"a": weight, "b": torch.nn.Parameter(weight), "c": torch.ones(3)})
    back = state_image.join_state(*taken)

    assert len(taken[1]) == 2
    assert back["a"] is back["b"]


def test_overlapping_tensors_are_shared_only_if_identical() -> None:
    base = torch.complex(torch.arange(6.0), torch.ones(6))
    state = {
        "whole": base,
        "part": base[:3],
        "other shape": base.view(2, 3),
        "other numbers": torch.view_as_real(base),
        "every second": base[::2],
        "conjugated": base.conj(),
        "negated": torch._neg_view(base),
        "again": base[:],
    }
    taken = state_image.split_state(state)
    back = state_image.join_state(*taken)

    assert len(taken[1]) == len(state) - 1
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_unsupported_state_is_named_with_its_path() -> None:
    with pytest.raises(errors.BadInput, match=r"state\['optimizer'\]\[1\] is builtins.object"):
        state_image.split_state({"optimizer": [1, object()]})
    with pytest.raises(errors.BadInput, match=r"state\['x'\] is a torch.sparse_coo tensor"):
        state_image.split_state({"x": torch.eye(2).to_sparse()})
    endless: dict[str, object] = {}
    endless["inner"] = [endless]
    with pytest.raises(errors.BadInput, match="a part of it contains itself"):
        state_image.split_state(endless)
    with pytest.raises(errors.BadInput, match=r"on meta"):
        state_image.split_state({"x": torch.empty(2, device="meta")})
