"""Tracks the disks of servers: which see the job's folder, which mirror whose files, and where each serves files.

In: servers' requests for orders. Each request carries all these facts, so a new master knows them at once. Out: orders
for `server.checkpoints`, and facts for `master.checkpoint.file_directory`. A job with one shared folder and no mirror
does not use this module.
"""

from collections.abc import Iterable, Mapping

import msgspec

from springtide.checkpoint.format.manifest import Manifest, bare, folder_of
from springtide.domain.core.roles import Role
from springtide.domain.model.checkpoints import Buddy, CheckpointRules, buddy_of
from springtide.rpc.messages import messages


class MirrorDirectory:
    """Disk facts that each server reported, by incarnation. Reports of earlier incarnations do not count."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        self._said: dict[str, messages.SaveRequest] = {}
        self.must_all_speak = rules.mirror
        """True if a checkpoint may begin only after every server has reported. An earlier master may have used higher
        numbers."""

    def listens(self, role: Role, incarnation: int, said: messages.SaveRequest) -> None:
        """Record the facts in a server's request for orders."""
        self._said[f"{role}.{incarnation}"] = said

    def known(self, lives: Mapping[int, str]) -> bool:
        """Return True if every server that must report its disk has done so."""
        return not (self.must_all_speak or self.nodes(lives)) or self.spoken(lives)

    def spoken(self, lives: Mapping[int, str]) -> bool:
        """Return True if every server has reported its disk."""
        return all(life in self._said for life in lives.values())

    def nodes(self, lives: Mapping[int, str]) -> dict[str, str]:
        """Return the machine of each server with its own disk."""
        said = {life: self._said[life] for life in lives.values() if life in self._said}
        return {server_of(life): one.node for life, one in said.items() if one.node}

    def holders(self, lives: Mapping[int, str], numbers: Iterable[int]) -> messages.FileHolders:
        """Return the servers that serve files, and the servers whose address is not known yet."""
        addresses = {server_of(life): said.takes_copies_at for life, said in self._said.items() if said.node}
        living = {server_of(life) for life in lives.values()}
        spoken = {server_of(life) for life in lives.values() if life in self._said}
        known = {server: at for server, at in addresses.items() if server in spoken}
        return messages.FileHolders(tuple(numbers), known, tuple(sorted(living - spoken)))

    def named(
        self, order: messages.SaveOrder, role: Role, lives: Mapping[int, str], kept: Iterable[Manifest] = ()
    ) -> messages.SaveOrder:
        """Complete an order for one server: add its buddy, and the files that it must keep."""
        own = self._said.get(lives.get(role.rank, ""))
        if own is not None and own.node:
            files = [name for manifest in kept for file in manifest.files for name in (file.name, file.mirror)]
            needed = {bare(name) for name in files if folder_of(name) == str(role)}
            order = msgspec.structs.replace(order, needed=tuple(sorted(needed)))
        if not self._rules.mirrors(own.node if own is not None else ""):
            return order
        known = {rank: self._said[life] for rank, life in lives.items() if life in self._said}
        rank = buddy_of(role.rank, {rank: said.node for rank, said in known.items() if said.takes_copies_at})
        if rank is None:
            return order
        buddy = Buddy(server_of(lives[rank]), known[rank].takes_copies_at, known[rank].node)
        return msgspec.structs.replace(order, buddy=buddy)


def server_of(life: str) -> str:
    """Return the server name of an incarnation."""
    return life.rpartition(".")[0]
