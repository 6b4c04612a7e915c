"""What a node answers to its API server: the output of containers, at `/containerLogs/NAMESPACE/POD/CONTAINER`.

In: requests that an API server passes on for `kubectl logs`. Out: the text, followed to its end where that is asked.
"""

import asyncio
import contextlib
import pathlib
from collections.abc import Callable

from aiohttp import web

from springtide_lab.kubernetes.control import certificates
from springtide_lab.kubernetes.kubelet.pod_lifecycle import PodLife

LOOK_S = 0.05
CHUNK = 1 << 16


class NodeServer:
    """Serves logs of the pods that `find` knows by namespace and name."""

    def __init__(self, find: Callable[[str, str], PodLife | None], folder: pathlib.Path) -> None:
        self._find = find
        self._folder = folder
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = certificates.make(host).server_context(self._folder)
        await web.TCPSite(self._runner, host, 0, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        life = self._find(names["namespace"], names["pod"])
        if life is None:
            return web.Response(status=404, text=f'pod "{names["pod"]}" is not here')
        container = names["container"]
        path = life.log_of(container)
        if request.query.get("previous") in ("true", "1"):
            path = path.with_name(f"{int(path.stem) - 1}.log")
            if not path.exists():
                return web.Response(status=400, text=f'previous terminated container "{container}" not found')
        follow = request.query.get("follow") in ("true", "1")
        if not path.exists() and not follow:
            why = f'container "{container}" in pod "{names["pod"]}" is waiting to start: ContainerCreating'
            return web.Response(status=400, text=why)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        lines = request.query.get("tailLines")
        with contextlib.suppress(ConnectionError):  # whoever read it is gone
            await self._send(response, path, None if lines is None else int(lines), life if follow else None, container)
        return response

    async def _send(
        self, response: web.StreamResponse, path: pathlib.Path, lines: int | None, life: PodLife | None, container: str
    ) -> None:
        while not path.exists():
            if life is None or life.is_over(container):
                return
            await asyncio.sleep(LOOK_S)
        with open(path, "rb") as file:
            if lines is not None:
                file.seek(start_of_tail(path.read_bytes(), lines))
            while True:
                over = life is None or life.is_over(container)
                if chunk := file.read(CHUNK):
                    await response.write(chunk)
                elif over:
                    return
                else:
                    await asyncio.sleep(LOOK_S)


def start_of_tail(data: bytes, lines: int) -> int:
    if lines <= 0:
        return len(data)
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1
