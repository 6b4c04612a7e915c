"""An API server for tests, over real HTTPS, in a thread of its own: `with ApiServer(folder) as server: ...`.

In: a folder for its certificate and kubeconfig. Out: `server.kubeconfig`, which every client can use; `server.faults`
to make things go wrong. Requests: `http`. Pods run only where a `LocalKubelet` does.
"""

import datetime
import json
import os
import pathlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from springtide.platforms.agent import credentials
from springtide.rpc.transport import tls
from springtide_lab.kubernetes.api.api_faults import Faults
from springtide_lab.kubernetes.api.http import Api
from springtide_lab.kubernetes.api.loop_thread import LoopThread
from springtide_lab.kubernetes.api.status_errors import Json

NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
LIFE = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and who signed it."""

    ca: str
    certificate: str
    key: str

    def server_context(self, folder: pathlib.Path) -> ssl.SSLContext:
        """For a server; written to `folder`, since Python reads certificates from files only."""
        files = folder / "tls.crt", folder / "tls.key"
        files[0].write_text(self.certificate)
        files[1].touch(0o600)
        files[1].write_text(self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        return context


def make(address: str = "127.0.0.1") -> Certificate:
    """A new authority, and a certificate of it for an address and the names of an API server."""
    now = datetime.datetime.now(datetime.UTC)
    made = credentials.make("testing", at=now, life=LIFE, roles=("kubernetes",), hosts=(address, *NAMES))
    own = {name: content.decode() for name, content in credentials.of_role(made, "kubernetes").items()}
    return Certificate(own[tls.AUTHORITY], own[tls.CERTIFICATE], own[tls.KEY])


class ApiServer(LoopThread):
    """One server, empty but for the namespaces `default` and `kube-system`."""

    def __init__(self, folder: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("kubernetes-api-server")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._host, self._port = host, port
        self._certificate = make(host)
        self._api = Api(self._certificate.ca)
        self.token = self._api.tokens.admin()
        self.url = ""

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

        return self.call(within())

    async def main(self) -> None:
        runner = web.AppRunner(self._api.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, ssl_context=self._certificate.server_context(self.folder))
        await site.start()
        self.url = f"https://{self._host}:{runner.addresses[0][1]}"
        self.write_kubeconfig(self.kubeconfig, self.token)
        self.ready()
        await self.over.wait()
        self._api.drop_watches()
        await runner.cleanup()
