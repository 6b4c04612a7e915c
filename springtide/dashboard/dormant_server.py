"""Opens the dashboard of a `springtide run` at no cost: the run only listens, and starts the server's process at the
first connection. Most runs are never looked at, so this module imports nothing of the web server.
"""

import asyncio
import os
import sys
from typing import Self

import msgspec

from springtide import config
from springtide.dashboard.page_socket import LOOPBACK, ServerOrder, listen, new_token, url_of
from springtide.telemetry.logs import RunFiles, open_log

MODULE = "springtide.dashboard.server"
AGAIN_S = 5.0  # seconds after the end of a server before a new connection may start another server
END_S = 5.0  # seconds that a server may take to end


class DormantServer:
    """A listening socket, and the server that takes it over at the first connection. The server ends with this
    process."""

    def __init__(self, files: RunFiles, port: int) -> None:
        self._files, self._token = files, new_token()
        self._listener = listen(LOOPBACK, port, option="--dashboard")
        self.url = url_of(self._listener, self._token)
        self._process: asyncio.subprocess.Process | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._await_visitor()
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), END_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _await_visitor(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._on_visitor)

    def _on_visitor(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._serving = loop.create_task(self._serve())

    async def _serve(self) -> None:
        descriptor = self._listener.fileno()
        order = ServerOrder(descriptor, str(self._files.root.parent), self._files.root.name, self._token, os.getpid())
        with open_log(self._files.logs / "dashboard.log") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor,),
                start_new_session=True,
                env=config.with_arguments([msgspec.json.encode(order).decode()]),
            )
        await self._process.wait()
        await asyncio.sleep(AGAIN_S)
        self._await_visitor()
