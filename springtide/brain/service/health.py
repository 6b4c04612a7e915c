"""Health endpoints of a brain, for its process supervisor: `GET /live` and `GET /ready`.

In: HOST:PORT. Out: 200 or 503. A standby brain is live but not ready, so a Kubernetes service sends masters to the
serving brain. The endpoints are read-only.
"""

import contextlib
from collections.abc import AsyncIterator

from springtide.rpc.transport import addresses
from springtide.telemetry import prometheus


class HealthServer(prometheus.MetricsServer):
    """Health server of one brain."""

    def __init__(self) -> None:
        super().__init__(lambda: "")
        self.serving = False

    def _reply(self, line: str) -> bytes:
        path = line.partition(" ")[2].partition(" ")[0]
        if path not in ("/live", "/ready"):
            return prometheus.response("404 Not Found", "/live and /ready\n")
        if path == "/ready" and not self.serving:
            return prometheus.response("503 Service Unavailable", "standing by\n")
        return prometheus.response("200 OK", "serving\n" if self.serving else "standing by\n")


@contextlib.asynccontextmanager
async def opened(listen: str) -> AsyncIterator[HealthServer]:
    health = HealthServer()
    if listen:
        host, port = addresses.parse(listen)
        await health.start(port, host, option="--health")
    try:
        yield health
    finally:
        await health.close()
