"""Images: laid out, filled in memory, read again; damage is told."""

import concurrent.futures
import io
import pathlib

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from springtide import errors
from springtide.checkpoint.checkpointer import state_folder, state_image, state_memory


def filled(path: pathlib.Path, state: object, *, step: int = 7, sequence: int = 1, threads: int = 2) -> bytes:
    plan = state_image.plan_image(state, step=step, sequence=sequence)
    image = state_memory.ImageFile(path)
    with concurrent.futures.ThreadPoolExecutor(threads) as copiers:
        image.fill(plan, copiers, threads)
    image.close()
    return path.read_bytes()[: plan.head.image_bytes]


@given(some.integers(0, 2**31), some.integers(0, 2**62), some.integers(1, 2**62), some.integers(-(2**62), 2**62))
def test_a_head_survives_its_bytes(index: int, image: int, sequence: int, step: int) -> None:
    head = state_folder.ImageHead(index, image, sequence, step, 5)

    assert state_folder.decode_head(state_folder.encode_head(head)) == head


@given(some.integers(0, 63), some.integers(1, 255))
def test_any_changed_byte_of_a_head_is_found(at: int, by: int) -> None:
    data = bytearray(state_folder.encode_head(state_folder.ImageHead(10, 100, 1, 7, 5)))
    data[at] ^= by

    with pytest.raises(errors.BadInput):
        state_folder.decode_head(bytes(data))


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
        "large": torch.arange(3 * state_memory.PIECE // 8 + 5),
    }
    head, back, _ = state_image.read_image(io.BytesIO(filled(tmp_path / "a.image", state)))

    assert head.step == 7
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor), name


@given(some.lists(some.lists(some.integers(0, 2), max_size=9), max_size=20), some.text(max_size=300))
def test_an_index_of_any_length_ends_before_the_tensors_begin(shapes: list[list[int]], word: str) -> None:
    state = {"word": word, "tensors": [torch.zeros(shape, dtype=torch.float8_e4m3fnuz) for shape in shapes]}
    plan = state_image.plan_image(state, step=2**60, sequence=2**60)

    ends = [state_folder.BYTES + len(plan.index), *(place.offset + place.size for place in plan.places)]
    begins = [*(place.offset for place in plan.places), plan.head.image_bytes]
    assert all(end <= begin for end, begin in zip(ends, begins, strict=True))


def test_a_save_that_fails_half_way_leaves_nobody_who_still_writes(tmp_path: pathlib.Path) -> None:
    state = {"large": torch.ones(8 * state_memory.PIECE // 4), "small": torch.ones(3)}
    plan = state_image.plan_image(state, step=1, sequence=1)
    plan = msgspec.structs.replace(plan, tensors=(plan.tensors[0], None))  # what cannot be copied after all
    image = state_memory.ImageFile(tmp_path / "a.image")
    with concurrent.futures.ThreadPoolExecutor(2) as copiers:
        with pytest.raises(AttributeError):
            image.fill(plan, copiers, 2)
        image.touch(plan.head.image_bytes)
    assert not any(image.path.read_bytes())
    image.close()


def test_a_torn_image_is_told(tmp_path: pathlib.Path) -> None:
    data = filled(tmp_path / "a.image", {"x": torch.arange(1000)})

    for length in (10, 70, 200, len(data) - 1):
        with pytest.raises(errors.BadInput):
            state_image.read_image(io.BytesIO(data[:length]))


def test_an_image_that_grows_is_whole_and_one_being_filled_is_none(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.image"
    filled(path, {"x": torch.ones(1000)})
    filled(path, {"x": torch.ones(1200)}, sequence=2)
    assert [head.sequence for head, _ in state_folder.whole_images(tmp_path)] == [2]

    with open(path, "r+b") as file:  # as a process killed while it copies would leave it
        file.write(bytes(state_folder.BYTES))
    assert state_folder.whole_images(tmp_path) == []
