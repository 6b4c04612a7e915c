"""Uploads of checkpoints: when one begins, what its process is asked to do, and what the job learns of its end."""

import asyncio
import json
import pathlib
import sys
from types import SimpleNamespace

import msgspec
import pytest

from springtide import config
from springtide.checkpoint.transfer.upload import Uploaded
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.master.checkpoint import uploads
from springtide.master.checkpoint.server_disks import CopyFailed, CopyTotals
from springtide.master.checkpoint.uploads import Uploads
from tests.unit.checkpoint import stores


def checkpoint(number, *, apart=False):
    return SimpleNamespace(number=number, apart=apart)


class Uploading:
    """Uploads with fakes of the process and of the servers that copy their own files."""

    def __init__(self, url="s3://there", *, folder="run"):
        self.events, self.ended, self.copied = [], [], []
        self.results, self.sent = [], CopyTotals()
        self.uploads = Uploads(
            CheckpointRules(every_s=1.0, url=url, upload_every_s=100.0, keep=3),
            pathlib.Path(folder),
            stores.CLAIM,
            lambda kind, **facts: self.events.append((kind, facts)),
            self,
            self.ended.append,
            holders=lambda: {"server-0": "host:1"},
        )

    async def through(self, manifest):
        self.copied.append(manifest.number)
        if isinstance(self.sent, Exception):
            raise self.sent
        return self.sent

    async def _process(self, number):
        result = self.results.pop(0) if self.results else Uploaded(number)
        if isinstance(result, Exception):
            raise result
        return result

    async def upload(self, last, at=0.0):
        """Upload this checkpoint at once, with a fake of the process."""
        self.uploads._process = self._process
        assert self.uploads.poll(last, at, hurry=True)
        await self.uploads._task


# ---- when an upload begins ----


def test_each_checkpoint_is_uploaded_once_and_at_most_once_in_an_interval():
    async def run():
        made = Uploading()
        up, began = made.uploads, []
        up._process = lambda number: began.append(number) or asyncio.sleep(0, Uploaded(number))

        async def poll(last, at, *, hurry=False):
            busy = up.poll(last, at, hurry=hurry)
            if busy:
                await up._task
            return busy, list(began)

        assert await poll(None, 50.0) == (False, [])
        assert await poll(checkpoint(1), 149.5) == (False, []), "the first interval begins with the first look"
        assert await poll(checkpoint(1), 150.0) == (True, [1])
        assert await poll(checkpoint(1), 300.0, hurry=True) == (False, [1])
        assert await poll(checkpoint(2), 249.0) == (False, [1])
        assert await poll(checkpoint(2), 249.0, hurry=True) == (True, [1, 2])
        assert await poll(checkpoint(3), 348.0) == (False, [1, 2]), "the interval begins with the last upload"
        assert await poll(checkpoint(3), 349.0) == (True, [1, 2, 3])

    asyncio.run(run())


def test_upload_under_way_is_not_joined_by_another():
    async def run():
        made, held = Uploading(), asyncio.Event()
        up, began = made.uploads, []

        async def process(number):
            began.append(number)
            await held.wait()
            return Uploaded(number)

        up._process = process
        assert up.poll(checkpoint(1), 0.0, hurry=True)
        await asyncio.sleep(0)
        assert up.poll(checkpoint(2), 200.0, hurry=True) and up.running.number == 1
        held.set()
        await up._task
        assert up.running is None and began == [1] and up.done == 1
        assert up.poll(checkpoint(2), 200.0, hurry=True)
        await up._task
        assert began == [1, 2]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "apart", "hurry", "begins"),
    [("", True, True, True), ("", True, False, False), ("", False, True, False), ("s3://there", False, True, True)],
)
def test_files_on_servers_disks_are_fetched_at_the_end_of_a_job_without_url(url, apart, hurry, begins):
    async def run():
        made = Uploading(url)
        made.uploads._process = made._process
        assert made.uploads.poll(checkpoint(1, apart=apart), 1000.0, hurry=hurry) is begins
        if begins:
            await made.uploads._task
        assert made.copied == [], "servers copy their files to a URL only"

    asyncio.run(run())


# ---- how it ends ----


def test_complete_upload_counts_what_servers_and_the_process_sent(monkeypatch):
    times = iter([10.0, 12.34567])
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: next(times)))

    async def run():
        made = Uploading()
        made.sent, made.results = CopyTotals(2, 500), [Uploaded(7, files=1, bytes=40)]
        made.uploads.trouble = "of an earlier one"
        await made.upload(last := checkpoint(7, apart=True))
        told = {"number": 7, "outcome": "complete", "url": "s3://there", "files": 3, "bytes": 540, "seconds": 2.346}
        assert made.copied == [7] and made.events == [("uploaded", told)]
        assert made.ended == [last] and made.uploads.done == 7 and made.uploads.trouble == ""

    asyncio.run(run())


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Uploaded(7, error="AccessDenied"), "AccessDenied"),
        (OSError("no process"), "the upload process failed: no process"),
        (msgspec.DecodeError("not json"), "the upload process failed: not json"),
        (CopyFailed("server-1 is full"), "server-1 is full"),
    ],
)
def test_failed_upload_is_told_and_leaves_the_last_complete_one(result, why, caplog):
    async def run():
        made = Uploading()
        made.uploads.done = 5
        if isinstance(result, CopyFailed):
            made.sent = result
        else:
            made.results = [result]
        await made.upload(checkpoint(7, apart=True))
        told = {"number": 7, "outcome": "failed", "url": "s3://there", "why": why}
        assert made.events == [("uploaded", told)]
        assert made.ended == [None] and made.uploads.done == 5 and made.uploads.running is None
        assert made.uploads.trouble == f"checkpoint 7 could not be copied to s3://there: {why}"
        assert made.uploads.trouble in caplog.text

    asyncio.run(run())


# ---- its process ----


@pytest.mark.parametrize("url", ["s3://user:secret@there", ""])
def test_process_gets_its_arguments_in_its_environment(monkeypatch, tmp_path, url):
    asked = {}

    async def run():
        async def start(*command, **options):
            asked.update(options, command=command)
            output = asyncio.StreamReader()
            output.feed_data(b'a library talks\n{"number": 7, "files": 2}\n')
            output.feed_eof()
            return SimpleNamespace(stdout=output, wait=lambda: asyncio.sleep(0, 0))

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        made = Uploading(url, folder=tmp_path)
        assert made.uploads.poll(checkpoint(7, apart=not url), 0.0, hurry=True)
        await made.uploads._task
        assert made.events[0][1]["files"] == 2 and made.events[0][1]["url"] == (url or str(tmp_path))

    asyncio.run(run())
    assert asked["command"] == (sys.executable, "-m", "springtide.checkpoint.transfer.upload")
    assert asked["stdin"] == asked["stdout"] == asyncio.subprocess.PIPE, "the process ends with its master"
    claim = msgspec.json.encode(stores.CLAIM).decode()
    kind = ["upload", str(tmp_path), url, "7", "3"] if url else ["gather", str(tmp_path), "7", '{"server-0":"host:1"}']
    assert json.loads(asked["env"][config.ARGUMENTS]) == [*kind, claim]


def answer_of(shell):
    async def ask():
        process = await asyncio.create_subprocess_exec("sh", "-c", shell, stdout=asyncio.subprocess.PIPE)
        try:
            return await asyncio.wait_for(uploads.answer_of(process), 60)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return asyncio.run(ask())


def test_result_is_used_without_waiting_for_process_exit(monkeypatch):
    monkeypatch.setattr(uploads, "ENDS_S", 0.01)
    line = '{"number": 3, "url": "s3://there", "error": "silent"}'
    assert answer_of(f"echo a library talks; echo '{line}'; exec sleep 600").error == "silent"


def test_process_that_closed_its_output_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(uploads, "ENDS_S", 0.01)
    with pytest.raises(OSError, match="closed its output and did not exit before it reported a result"):
        answer_of("exec sleep 600 >&-")


def test_process_that_ends_without_a_result_is_named_with_its_status():
    with pytest.raises(OSError, match="the upload process exited with status 3 before it reported a result"):
        answer_of("echo a library talks; exit 3")
