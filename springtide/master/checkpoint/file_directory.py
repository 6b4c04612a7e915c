"""Tells servers with their own disks which server holds which checkpoint file.

The master also serves its own files, because such servers cannot see the job's folder.

In: requests of servers, from `master.dispatcher`. Out: replies, and one sentence that says what the loss of a host
would cost this job. Next: `checkpoint.transfer.file_transfer` on the server, `master.checkpoint.server_copies` for
copies in storage.
"""

import asyncio
from collections.abc import Callable, Mapping

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import number_of
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer.file_transfer import SegmentCopies
from springtide.domain.core.roles import Role
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.master.checkpoint.mirrors import MirrorDirectory
from springtide.master.checkpoint.server_copies import ServerCopies
from springtide.rpc.messages import messages

ALONE = "with no copy elsewhere"
GROUP = (
    ". All servers of a bsp group begin anew when one is lost: where a process takes its disk along, as a pod does, "
    "only a checkpoint URL or a folder that all see brings it back"
)


class FileDirectory:
    """Checkpoint files of one job by holder. `lives` returns the servers that run now or will run soon."""

    def __init__(
        self,
        folder: FolderStore,
        buddies: MirrorDirectory,
        copying: ServerCopies,
        *,
        lives: Callable[[], Mapping[int, str]],
    ) -> None:
        self._folder, self._buddies, self._copying, self._lives = folder, buddies, copying, lives
        self._segments = SegmentCopies(folder.path)

    async def answer(self, role: Role, request: messages.Request) -> messages.Reply:
        """Answer a server's request for file holders, for the master's files, or for files to copy to storage."""
        match request:
            case messages.FileHoldersRequest():
                return self._buddies.holders(
                    self._lives(), await asyncio.to_thread(checkpoint_io.numbers, self._folder)
                )
            case messages.ReadFile():
                return messages.FileRun(*await asyncio.to_thread(self._run, request))
            case messages.CopyRequest():
                return await self._copying.order_for(str(role), request)
            case messages.CopyReport():
                self._copying.heard(str(role), request)
                return messages.Ok()
        raise errors.BadInput(f"a server may not ask for {type(request).__name__}")

    def _run(self, request: messages.ReadFile) -> tuple[int, bytes]:
        if number_of(request.name) is None:
            return self._segments.run(request.name, request.offset, request.length)
        size = self._folder.size(request.name)
        if size is None:
            return -1, b""
        return size, self._folder.read(request.name, request.offset, request.length) if request.length else b""


def cost_of_a_host(rules: CheckpointRules, nodes: Mapping[str, str], servers: int, *, in_step: bool = False) -> str:
    """Describe what the loss of a machine means for a job whose servers have their own disks. `nodes` maps servers to
    machines; the result is empty if all servers see one folder. `in_step` is True for a bsp group, in which all servers
    restart if one is lost.
    """
    if not nodes:
        return ""
    who = f"{len(nodes)} of {servers} servers do not see the job's folder, and keep checkpoints on their own disks"
    mirror = all(map(rules.mirrors, nodes.values())) and servers > 1
    together = mirror and len(set(nodes.values())) < 2 and len(nodes) == servers
    copies = [
        *(["from the copies of another server"] if mirror and not together else []),
        *([f"from {rules.url}, at most {rules.upload_every_s:g} s back"] if rules.url else []),
    ]
    same = ", which are all on one machine" if together else ""
    if copies:
        group = "" if rules.url or not in_step else GROUP
        return f"{who}{same}; after the loss of a disk the job goes on {', else '.join(copies)}{group}"
    return (
        f"{who}{same}, {ALONE}: a server that is lost comes back from its own disk only, and with that "
        "disk (a machine, a pod) the job would be lost. Give a checkpoint URL, or two servers or more on different "
        "machines, or a folder that all see"
    )
