"""A store that hangs without an error is given up, with the reason; one that is slow is not."""

import asyncio
import threading

import fsspec
import pytest

from springtide.checkpoint.format import storage
from springtide.checkpoint.transfer import upload
from springtide.master.checkpoint import uploads
from tests.unit.checkpoint import stores


class Clock:
    """Time that goes on when somebody rests."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def rest(self, seconds):
        self.now += seconds


def test_silence_is_given_up_once_and_says_why():
    clock, said = Clock(), []
    storage.StoreTimeout(600, clock).watch(said.append, clock.rest)
    assert len(said) == 1 and "neither answered nor failed for 600 s" in said[0]
    assert 700 < clock.now < 730


def test_a_slow_store_that_answers_is_waited_for():
    clock, said = Clock(), []
    one = storage.StoreTimeout(600, clock)

    def rest(seconds):
        clock.rest(seconds)
        if clock.now < 5000:
            one.moved()

    one.watch(said.append, rest)
    assert said and clock.now > 5500


def test_every_chunk_is_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 10)
    (tmp_path / "file").write_bytes(b"x" * 35)
    there, answers = storage.UrlStore(f"memory://{tmp_path}/chunks"), []
    there.moved = lambda: answers.append(1)
    there.put(tmp_path / "file", "file")
    assert len(answers) == 5  # four chunks, and the file as a whole


def test_a_copy_to_a_store_that_hangs_is_found_out(tmp_path, monkeypatch):
    folder, store, clock = tmp_path / "run", stores.store(), Clock()
    stores.train(store, range(100))
    stores.publish(folder, 1, stores.save(store, folder, 1))
    one, hangs, answers = storage.StoreTimeout(600, clock), threading.Event(), threading.Event()

    def open_file(self, path, mode="rb", **_):
        hangs.set()
        assert answers.wait(60)
        raise OSError("the store is back, and refuses")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "open", open_file)

    def copy():
        with pytest.raises(OSError, match="refuses"):
            upload.upload(folder, f"memory://{tmp_path}/hangs", 1, stores.CLAIM, keep=1, moved=one.moved)

    thread = threading.Thread(target=copy)
    thread.start()
    assert hangs.wait(60) and not one.trouble()
    clock.rest(601)
    assert "can be reached" in one.trouble()
    answers.set()
    thread.join()


def test_nobody_waits_for_the_end_of_a_process_that_has_said_it(monkeypatch):
    monkeypatch.setattr(uploads, "ENDS_S", 0.01)
    line = '{"number": 3, "url": "s3://there", "error": "silent"}'

    async def ask():
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", f"echo a library talks; echo '{line}'; exec sleep 600", stdout=asyncio.subprocess.PIPE
        )
        try:
            return await asyncio.wait_for(uploads.answer_of(process), 60)
        finally:
            process.kill()
            await process.wait()

    assert asyncio.run(ask()).error == "silent"


def test_a_process_that_closes_its_output_and_goes_on_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(uploads, "ENDS_S", 0.01)

    async def ask():
        process = await asyncio.create_subprocess_exec("sh", "-c", "exec sleep 600 >&-", stdout=asyncio.subprocess.PIPE)
        try:
            with pytest.raises(OSError, match="it closed its output and did not end before it was through"):
                await asyncio.wait_for(uploads.answer_of(process), 60)
        finally:
            process.kill()
            await process.wait()

    asyncio.run(ask())
