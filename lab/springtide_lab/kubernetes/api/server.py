"""Run an API server for tests in its own thread, over real HTTPS: `with ApiServer(folder) as server: ...`.

In: a folder for its certificate and kubeconfig. Out: `server.kubeconfig`, which every client can use; `server.faults`
to inject faults. Next: `http` answers requests. Pods run only with a `LocalKubelet`.
"""

import abc
import asyncio
import concurrent.futures
import contextlib
import datetime
import json
import logging
import os
import pathlib
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from aiohttp import web

from springtide.platforms.agent import credentials
from springtide.rpc.transport import tls
from springtide_lab.kubernetes.api.api_faults import Faults
from springtide_lab.kubernetes.api.http import Api

log = logging.getLogger(__name__)

START_S = 60.0
Result = TypeVar("Result")
HOST = "127.0.0.1"
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
LIFE = datetime.timedelta(days=2)


def make_context(address: str, folder: pathlib.Path) -> ssl.SSLContext:
    """Create an authority and its certificate for an address and the names of an API server; save both in `folder`."""
    now = datetime.datetime.now(datetime.UTC)
    made = credentials.make("testing", at=now, life=LIFE, roles=("kubernetes",), hosts=(address, *NAMES))
    for name, content in credentials.of_role(made, "kubernetes").items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / tls.CERTIFICATE, folder / tls.KEY)
    return context


class LoopThread(abc.ABC):
    """A thread with a separate event loop. A subclass's `main` must call `ready`, and end when `over` is set."""

    def __init__(self, name: str) -> None:
        self.over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._up.result(START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended already
            self._loop.call_soon_threadsafe(self.over.set)
        self._thread.join()

    @abc.abstractmethod
    async def main(self) -> None:
        """Run until `over` is set."""

    def ready(self) -> None:
        self._up.set_result(None)

    def call(self, work: Coroutine[Any, Any, Result], within_s: float = START_S) -> Result:
        """Run a coroutine in the loop from another thread; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.main())
        except BaseException as error:
            if self._up.done():
                log.exception("%s has ended", self._thread.name)
            else:
                self._up.set_exception(error)
        finally:
            self._loop.close()


class ApiServer(LoopThread):
    """An API server. At its start it has only the default namespaces."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__("kubernetes-api-server")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._context = make_context(HOST, self.folder)
        self._api = Api((self.folder / tls.AUTHORITY).read_text())
        self.url = ""

    @property
    def kubeconfig(self) -> pathlib.Path:
        return self.folder / "kubeconfig"

    @property
    def faults(self) -> Faults:
        return self._api.faults

    def _write_kubeconfig(self) -> None:
        """Write the kubeconfig as JSON, which is valid YAML."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testing",
            "clusters": [
                {
                    "name": "testing",
                    "cluster": {"server": self.url, "certificate-authority": str(self.folder / tls.AUTHORITY)},
                }
            ],
            "users": [{"name": "testing", "user": {"token": self._api.tokens.admin()}}],
            "contexts": [{"name": "testing", "context": {"cluster": "testing", "user": "testing"}}],
        }
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(json.dumps(config, indent=2))

    def drop_watches(self) -> None:
        """Break the connections of all watches."""
        self._call(self._api.drop_watches)

    def compact(self) -> None:
        """Drop all history. A watch that resumes from an earlier version then gets 410."""
        self._call(self._api.store.compact)

    def _call(self, step: Callable[[], Any]) -> Any:
        async def within() -> Any:
            return step()

        return self.call(within())

    async def main(self) -> None:
        runner = web.AppRunner(self._api.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0, ssl_context=self._context)
        await site.start()
        self.url = f"https://{HOST}:{runner.addresses[0][1]}"
        self._write_kubeconfig()
        self.ready()
        await self.over.wait()
        self._api.drop_watches()
        await runner.cleanup()
