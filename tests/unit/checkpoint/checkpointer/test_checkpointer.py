"""Saves return once in memory and report their outcome; loaded tensors own their memory."""

import pathlib
import resource
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.checkpoint import Checkpointer, Outcome
from springtide.checkpoint.checkpointer import saver


@pytest.fixture
def place(tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
    return {"url": tmp_path / "saves", "memory": tmp_path / "memory"}


@pytest.fixture
def checkpointer(place: dict[str, pathlib.Path]) -> Iterator[Checkpointer]:
    with Checkpointer(**place) as checkpointer:
        yield checkpointer


def test_twenty_saves_in_a_row_all_persist(checkpointer: Checkpointer) -> None:
    saves = [checkpointer.save(step, {"x": torch.full((1000,), step)}) for step in range(20)]
    checkpointer.wait()

    assert [save.outcome for save in saves] == [Outcome.PERSISTED] * 20
    assert [manifest.step for manifest in checkpointer.saved()] == [19, 18, 17]


def test_superseded_save_knows_it_before_the_later_one_returns(place: dict[str, pathlib.Path]) -> None:
    with Checkpointer(**place, when_busy="supersede") as checkpointer:
        saves = []
        for step in range(20):
            saves.append(checkpointer.save(step, {"x": torch.full((1000,), step)}))
            pending = [save for save in saves if save.outcome is Outcome.PENDING]
            assert len(pending) <= 2
        checkpointer.wait()

        assert {save.outcome for save in saves} <= {Outcome.PERSISTED, Outcome.SUPERSEDED}
        assert saves[-1].outcome is Outcome.PERSISTED
        found = checkpointer.load()
        assert found and found.step == 19 and found.state["x"][0] == 19


def test_tensor_that_grew_between_saves_is_exact(place: dict[str, pathlib.Path]) -> None:
    with Checkpointer(**place) as checkpointer:
        for rows in (1000, 1200, 300_000, 50):
            checkpointer.save(rows, {"table": torch.arange(rows * 8).reshape(rows, 8)}).wait()
            for found in (checkpointer.load(), Checkpointer(place["url"], memory=place["memory"] / "none").load()):
                assert found and torch.equal(found.state["table"], torch.arange(rows * 8).reshape(rows, 8))


def test_loaded_tensors_never_change_under_a_later_save(place: dict[str, pathlib.Path]) -> None:
    """Writing to loaded tensors does not change a later save either: images and storage are refilled."""
    with Checkpointer(**place) as checkpointer:
        checkpointer.save(1, {"x": torch.ones(5000), "n": np.ones(9)}).wait()
        loaded = [checkpointer.load(), Checkpointer(place["url"], memory=place["memory"] / "none").load()]
        for step in (2, 3, 4):
            checkpointer.save(step, {"x": torch.full((5000,), float(step)), "n": np.full(9, step)})
        checkpointer.wait()

        assert [found.source for found in loaded if found] == ["memory", "storage"]
        for found in loaded:
            assert found and torch.equal(found.state["x"], torch.ones(5000)) and found.state["n"].tolist() == [1.0] * 9
            found.state["x"].zero_()
            found.state["n"][:] = 0
        newest = checkpointer.load()
        assert newest and torch.equal(newest.state["x"], torch.full((5000,), 4.0)) and newest.state["n"][0] == 4


def test_outcome_of_a_save_is_known_before_the_next_save_returns(
    place: dict[str, pathlib.Path],
) -> None:
    """The fate of the first save is known when the second returns, however slow storage is."""
    for when_busy in ("wait", "supersede"):
        with Checkpointer(place["url"] / when_busy, memory=place["memory"] / when_busy, when_busy=when_busy) as saver:
            for step in range(0, 8, 2):
                one, two = (saver.save(number, {"x": torch.full((50_000,), number)}) for number in (step, step + 1))
                at_once = one.outcome
                assert [one.wait(), two.wait()] in (
                    [Outcome.PERSISTED, Outcome.PERSISTED],
                    [at_once, Outcome.PERSISTED],
                )
                found = Checkpointer(place["url"] / when_busy, memory=place["memory"] / "none").load(step + 1)
                assert found and torch.equal(found.state["x"], torch.full((50_000,), step + 1))


def test_save_has_the_state_of_its_call(checkpointer: Checkpointer) -> None:
    weight = torch.ones(5000)
    save = checkpointer.save(1, {"x": weight})
    weight.add_(1)
    save.wait()

    found = checkpointer.load()
    assert found and torch.equal(found.state["x"], torch.ones(5000))


def test_load_without_a_save_is_none_and_a_missing_step_is_an_error(checkpointer: Checkpointer) -> None:
    assert checkpointer.load() is None
    checkpointer.save(3, {}).wait()
    with pytest.raises(errors.MissingFile, match=r"no save of step 4 .*steps there: \[3\]"):
        checkpointer.load(4)


def test_corrupt_save_is_skipped_for_the_previous_and_logged(place: dict[str, pathlib.Path]) -> None:
    with Checkpointer(**place) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"x": torch.full((500,), step)}).wait()
    newest = next(place["url"].glob("*-step2.state"))
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data)

    found = Checkpointer(place["url"], memory=place["memory"] / "none").load()
    assert found and found.step == 1 and found.source == "storage"
    assert "step 2" in found.skipped[0] and "checksum" in found.skipped[0]

    next(place["url"].glob("*-step2.json")).write_bytes(b"{")
    found = Checkpointer(place["url"], memory=place["memory"] / "none").load()
    assert found and found.step == 1 and found.skipped == ("step 2: the manifest of save 2 is damaged",)

    next(place["url"].glob("*-step1.json")).write_bytes(b"")
    with pytest.raises(errors.BadInput, match=r"cannot load any save"):
        Checkpointer(place["url"], memory=place["memory"] / "none").load()


def test_step_saved_again_after_going_back_is_the_newest(place: dict[str, pathlib.Path]) -> None:
    for x in (1, 2):
        with Checkpointer(**place) as checkpointer:
            for step in (10, 20)[: 3 - x]:
                checkpointer.save(step, {"x": x}).wait()

    found = Checkpointer(place["url"], memory=place["memory"] / "none").load()
    assert found and (found.step, found.state) == (10, {"x": 2})


def test_second_process_at_the_same_url_is_refused(
    place: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("springtide.checkpoint.checkpointer.checkpointer.LOCK_WITHIN_S", 0.1)
    with Checkpointer(**place) as one, Checkpointer(**place) as other:
        one.save(1, {})
        with pytest.raises(errors.BadInput, match="another process saves to this URL"):
            other.save(1, {})


def test_save_without_memory_space_fails_and_harms_nothing(checkpointer: Checkpointer) -> None:
    checkpointer.save(1, {"x": torch.ones(10)}).wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(errors.DiskFull, match="no room for an image of 8 MB"):
            checkpointer.save(2, {"x": torch.ones(2 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    found = checkpointer.load()
    assert found and found.step == 1


def test_unwritable_storage_fails_the_save(place: dict[str, pathlib.Path]) -> None:
    with Checkpointer(**place) as checkpointer:
        checkpointer.save(1, {"x": 1}).wait()
        (place["url"] / f"{2:08d}-step2.state").mkdir()
        save = checkpointer.save(2, {"x": 2})

        assert save.wait() is Outcome.FAILED and "could not write" in save.error
        found = checkpointer.load()
        assert found and found.step == 2 and found.source == "memory"


def test_storage_in_this_process_works(tmp_path: pathlib.Path) -> None:
    with Checkpointer(f"memory://{tmp_path}/saves", memory=tmp_path) as checkpointer:
        assert checkpointer.save(1, {"x": torch.ones(3)}).wait() is Outcome.PERSISTED
    found = Checkpointer(f"memory://{tmp_path}/saves", memory=tmp_path / "none").load()
    assert found and found.source == "storage" and torch.equal(found.state["x"], torch.ones(3))


def test_invalid_checkpointer_arguments_are_refused(place: dict[str, pathlib.Path], checkpointer: Checkpointer) -> None:
    with pytest.raises(errors.BadInput, match="keep=0"):
        Checkpointer(**place, keep=0)
    with pytest.raises(errors.UnknownName, match="Did you mean 'supersede'"):
        Checkpointer(**place, when_busy="superseed")  # type: ignore[arg-type]
    with pytest.raises(errors.BadInput, match="step='one'"):
        checkpointer.save("one", {})  # type: ignore[arg-type]
    checkpointer.close()
    with pytest.raises(errors.BadInput, match="closed"):
        checkpointer.save(1, {})


def test_saver_refuses_an_image_that_holds_another_save(tmp_path: pathlib.Path) -> None:
    images = saver.ImageSaver(str(tmp_path / "saves"), tmp_path, 3)

    assert "no longer contains this save" in images.save(saver.ImageRequest("a.image", 1)).error


def test_image_of_a_queued_save_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    """On a busy machine the thread that hands images to the saver wakes late."""

    class Slow:
        def save(self, request: saver.ImageRequest) -> saver.SaveReply:
            started.set()
            go_on.wait()
            return saver.SaveReply(request.sequence)

        def stop(self) -> None: ...

    started, go_on = threading.Event(), threading.Event()
    saving = saver.SaveQueue(Slow())  # type: ignore[arg-type]
    saves = [saver.Save(1, 1, "a", 0), saver.Save(2, 2, "b", 0), saver.Save(3, 3, "b", 0)]
    for save, newest in zip(saves, ("", "a", "b"), strict=True):
        assert saving.free_image(("a", "b"), newest, supersede=True) == save.image
        saving.submit(save)
        started.wait()
    go_on.set()
    saving.close()

    assert [save.outcome for save in saves] == [Outcome.PERSISTED, Outcome.SUPERSEDED, Outcome.PERSISTED]
