"""Uploads checkpoints to a URL from time to time, in a separate process (`checkpoint.transfer.upload`), one at a time.

Servers first copy the files on their own disks (`master.checkpoint.server_disks`). Without a URL, files on servers' own
disks are fetched into the run's folder at the end of the job (`gather` in `checkpoint.transfer.upload`).
"""

import asyncio
import contextlib
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from springtide import config
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.checkpoint.transfer.upload import Uploaded
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.master.checkpoint.server_disks import CopyFailed, CopyTotals, ServerCopies

log = logging.getLogger(__name__)

ENDS_S = 10.0  # longest wait, in seconds, for the exit of an upload process that has reported its result
LONGEST_LINE = 16 << 20  # longest result line in bytes, because the error of a store may be a whole HTML page


class Uploads:
    """Uploads of one job."""

    def __init__(
        self,
        rules: CheckpointRules,
        folder: pathlib.Path,
        claim: RunClaim,
        tell: Callable[..., None],
        copying: ServerCopies,
        then: Callable[[Manifest | None], None],
        holders: Callable[[], Mapping[str, str]],
    ) -> None:
        """`then` is called with the manifest at the URL, or with None after a failure. `holders` returns the servers
        that serve files."""
        self._rules, self._folder, self._claim, self._tell = rules, folder, claim, tell
        self._copying, self._then, self._holders = copying, then, holders
        self.running: Manifest | None = None
        """Manifest of the checkpoint that is being copied; None if no copy is running. The files of this checkpoint
        must stay until the copy is complete.
        """
        self.done = 0
        self.trouble = ""
        self._tried = 0
        self._next_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def poll(self, last: Manifest | None, at: float, *, hurry: bool) -> bool:
        """Begin an upload if one is due. Return True if the last checkpoint is being uploaded. A job that ends waits
        for this upload.

        Without a URL, nothing is uploaded. At the end of the job (`hurry`), files that would disappear with the
        servers are fetched.
        """
        if self._next_at is None:
            self._next_at = at + self._rules.upload_every_s
        if last is None or not (self._rules.url or (hurry and last.apart)):
            return False
        wanted = self._tried < last.number and (hurry or at >= self._next_at)
        if self.running is None and wanted:
            self.running, self._tried, self._next_at = last, last.number, at + self._rules.upload_every_s
            self._task = asyncio.get_running_loop().create_task(self._upload(last))
        return self.running is not None

    async def _upload(self, manifest: Manifest) -> None:
        number, began = manifest.number, time.monotonic()
        try:
            sent = await self._copying.through(manifest) if manifest.apart and self._rules.url else CopyTotals()
            uploaded = await self._process(number)
            files, size = uploaded.files + sent.files, uploaded.bytes + sent.bytes
            seconds = time.monotonic() - began
            uploaded = msgspec.structs.replace(uploaded, files=files, bytes=size, seconds=seconds)
        except CopyFailed as error:
            uploaded = Uploaded(number, error=str(error))
        except (OSError, *UNDECODABLE) as error:
            uploaded = Uploaded(number, error=f"the upload process failed: {error}")
        self.running = None
        if uploaded.error:
            self.trouble = f"checkpoint {number} could not be copied to {self._where}: {uploaded.error}"
            log.warning("%s", self.trouble)
            self._tell("uploaded", number=number, outcome="failed", url=self._where, why=uploaded.error)
        else:
            self.done, self.trouble = number, ""
            self._tell(
                "uploaded",
                number=number,
                outcome="complete",
                url=self._where,
                files=uploaded.files,
                bytes=uploaded.bytes,
                seconds=round(uploaded.seconds, 3),
            )
        self._then(None if uploaded.error else manifest)

    @property
    def _where(self) -> str:
        return self._rules.url or str(self._folder)

    async def _process(self, number: int) -> Uploaded:
        arguments: tuple[str, ...]
        claim = msgspec.json.encode(self._claim).decode()
        arguments = ("upload", str(self._folder), self._rules.url, str(number), str(self._rules.keep), claim)
        if not self._rules.url:
            addresses = msgspec.json.encode(dict(self._holders())).decode()
            arguments = ("gather", str(self._folder.absolute()), str(number), addresses, claim)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "springtide.checkpoint.transfer.upload",
            env=config.with_arguments(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        return await answer_of(process)


async def answer_of(process: asyncio.subprocess.Process) -> Uploaded:
    """Return the result line without waiting for the process to exit, because a process that hangs in a mount cannot be
    killed."""
    assert process.stdout is not None
    output, code = b"", None
    async for line in process.stdout:
        if line.startswith(b"{"):
            output = line
            break
    with contextlib.suppress(TimeoutError):
        code = await asyncio.wait_for(process.wait(), ENDS_S)
    if not output:
        how = "closed its output and did not exit" if code is None else f"exited with status {code}"
        raise OSError(f"the upload process {how} before it reported a result")
    return msgspec.json.decode(output, type=Uploaded)
