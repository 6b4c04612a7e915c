"""Copies of checkpoints at a URL: begun now and then, made by a process of its own, one at a time.

In: `master.rounds` says which checkpoint is complete. Out: an event with what became of each, and `trouble` for the
status. The process (`checkpoint.upload`) ends with the master; half a copy is never seen by a reader.
"""

import asyncio
import logging
import pathlib
import sys
from collections.abc import Callable

import msgspec

from springtide.checkpoint.manifest import Manifest
from springtide.checkpoint.upload import Uploaded
from springtide.domain.checkpoints import CheckpointRules

log = logging.getLogger(__name__)


class Uploading:
    """One job's uploads."""

    def __init__(self, rules: CheckpointRules, folder: pathlib.Path, tell: Callable[..., None]) -> None:
        self._rules, self._folder, self._tell = rules, folder, tell
        self.running: Manifest | None = None
        """Its files must stay until it is copied."""
        self.done = 0
        """The last one that is at the URL."""
        self.trouble = ""
        self._tried = 0
        self._next_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def look(self, last: Manifest | None, at: float, *, final: bool, then: Callable[[], None]) -> bool:
        """Begin an upload if it is time. Whether the last one is on its way: a job that ends waits for it, once."""
        if self._next_at is None:
            self._next_at = at + self._rules.upload_every_s
        if not self._rules.url or last is None:
            return False
        wanted = self._tried < last.number and (final or at >= self._next_at)
        if self.running is None and wanted:
            self.running, self._tried, self._next_at = last, last.number, at + self._rules.upload_every_s
            self._task = asyncio.get_running_loop().create_task(self._upload(last.number, then))
        return self.running is not None

    async def _upload(self, number: int, then: Callable[[], None]) -> None:
        try:
            said = await self._process(number)
        except (OSError, msgspec.MsgspecError) as error:
            said = Uploaded(number, self._rules.url, error=f"the process that copies it failed: {error}")
        self.running = None
        if said.error:
            self.trouble = f"checkpoint {number} could not be copied to {said.url}: {said.error}"
            log.warning("%s", self.trouble)
            self._tell("uploaded", number=number, outcome="failed", url=said.url, why=said.error)
        else:
            self.done, self.trouble = number, ""
            self._tell(
                "uploaded", number=number, outcome="complete", url=said.url, files=said.files, bytes=said.bytes,
                seconds=round(said.seconds, 3),
            )  # fmt: skip
        then()

    async def _process(self, number: int) -> Uploaded:
        arguments = (str(self._folder), self._rules.url, str(number), str(self._rules.keep))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "springtide.checkpoint.upload", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        said = await process.stdout.read()
        code = await process.wait()
        lines = said.splitlines()
        if not lines:
            raise OSError(f"it ended with status {code} before it was through")
        return msgspec.json.decode(lines[-1], type=Uploaded)
