"""Asks a served brain for its state, for `springtide brain` and the dashboard."""

import asyncio
import pathlib
from dataclasses import dataclass
from typing import Any, TypeVar

from springtide import config as settings
from springtide import errors
from springtide.brain.service import serve
from springtide.brain.service.advisers import RemoteAdviser
from springtide.rpc.transport import addresses

T = TypeVar("T")
FOLDER = ".springtide/brain"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainLocation:
    """Address of a brain, and the credentials to connect to it."""

    folder: str = FOLDER
    """Folder of the brain's files, which has whatever the other fields leave empty."""
    address: str = ""
    secret_file: str = ""
    tls: str = ""

    @property
    def known(self) -> bool:
        """Return True if a brain has served from the folder, or if an address is given."""
        return bool(self.address) or serve.where_file(pathlib.Path(self.folder)).exists()


def ask(request: Any, kind: type[T], at: BrainLocation) -> T:
    """Send a request to a brain, and return its reply of this kind."""
    folder = pathlib.Path(at.folder)
    where = addresses.read_master(serve.where_file(folder))
    if not at.address and where is None:
        raise errors.BadInput(f"no brain has served from {folder}; give --folder, or --brain and --secret-file")
    certificates = at.tls or (where.tls if where and at.address in ("", where.address) else settings.load().brain_tls)
    address = at.address or (where.address if where else "")
    secret = settings.read_secret(at.secret_file or str(serve.secret_file(folder)), "the brain's secret")

    async def asked() -> Any:
        remote = RemoteAdviser(address, secret, certificates=certificates, connect_s=2.0, answer_s=10.0)
        try:
            return await remote.ask(request)
        finally:
            await remote.close()

    reply = asyncio.run(asked())
    if not isinstance(reply, kind):
        raise errors.BrainUnreachable(f"the brain at {address} answered with {type(reply).__name__}")
    return reply
