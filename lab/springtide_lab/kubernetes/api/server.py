"""An API server for tests, over real HTTPS, in a thread of its own: `with ApiServer(folder) as server: ...`.

In: a folder for its certificate and kubeconfig. Out: `server.kubeconfig`, which every client can use; `server.faults`
to make things go wrong; tokens of service accounts, to see what they may do. Requests: `http`. Pods run only where a
`LocalKubelet` does.
"""

import asyncio
import json
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from springtide_lab.kubernetes.api.api_faults import Faults
from springtide_lab.kubernetes.api.http import Api
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control import certificates

START_S = 60.0


class ApiServer:
    """One server, empty but for the namespaces `default` and `kube-system`."""

    def __init__(self, folder: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._host, self._port = host, port
        self._certificate = certificates.make(host)
        self._api = Api(self._certificate.ca)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kubernetes-api-server", daemon=True)
        self._up = threading.Event()
        self._trouble: BaseException | None = None
        self.token = self._api.tokens.admin()
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(START_S) or self._trouble is not None:
            raise RuntimeError(f"the API server did not start: {self._trouble}")
        return self

    def __exit__(self, *_: object) -> None:
        """Stopped; all connections end."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def kubeconfig(self) -> pathlib.Path:
        return self.folder / "kubeconfig"

    @property
    def faults(self) -> Faults:
        return self._api.faults

    def write_kubeconfig(self, path: pathlib.Path, token: str, namespace: str = "default") -> pathlib.Path:
        """A file for whoever has a token; JSON, which is YAML."""
        (self.folder / "ca.crt").write_text(self._certificate.ca)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testing",
            "clusters": [
                {
                    "name": "testing",
                    "cluster": {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")},
                }
            ],
            "users": [{"name": "testing", "user": {"token": token}}],
            "contexts": [
                {"name": "testing", "context": {"cluster": "testing", "user": "testing", "namespace": namespace}}
            ],
        }
        path.touch(0o600)
        path.write_text(json.dumps(config, indent=2))
        return path

    def objects(self, resource: str, namespace: str | None = None) -> list[Json]:
        """What the server keeps of a resource (`pods`, `elasticjobs.springtide.dev`), as it is now."""
        found: list[Json] = self._call(lambda: self._api.store.all(resource, namespace))
        return found

    def drop_watches(self, resource: str = "") -> int:
        """Break the connections of all watches, or of those of a resource; how many there were."""
        count: int = self._call(lambda: self._api.drop_watches(resource))
        return count

    def compact(self) -> None:
        """Forget the past: whoever resumes a watch from before now gets 410."""
        self._call(self._api.store.compact)

    def _call(self, step: Callable[[], Any]) -> Any:
        async def within() -> Any:
            return step()

        return asyncio.run_coroutine_threadsafe(within(), self._loop).result(START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as trouble:
            self._trouble = trouble
            self._up.set()
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        runner = web.AppRunner(self._api.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, ssl_context=self._certificate.server_context(self.folder))
        await site.start()
        self.url = f"https://{self._host}:{runner.addresses[0][1]}"
        self.write_kubeconfig(self.kubeconfig, self.token)
        self._up.set()
        await self._over.wait()
        self._api.drop_watches()
        await runner.cleanup()
