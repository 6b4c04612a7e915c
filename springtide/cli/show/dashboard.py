"""`springtide dashboard`: a job's figures in a browser, until Ctrl-C."""

import pathlib
import time
from typing import Any

import msgspec

from springtide.cli.common import exit_status
from springtide.cli.show import events as story
from springtide.dashboard import server as serving
from springtide.domain.spec.online_job import OnlinePoint
from springtide.launch import job_lookup
from springtide.platforms.local.job_handle import LocalJobHandle, places_of
from springtide.telemetry import events, time_series
from springtide.telemetry.run_registry import JobRun

SENTENCES = 40
STATUS_S = 0.5  # several browsers that look at one job ask its master once


def dashboard(name: str | None, *, folder: str, host: str, port: int) -> int:
    run = job_lookup.pick_local(name, folder)
    server = serving.serve(DashboardData(run), host=host, port=port)
    shown = f"http://{server.server_address[0]!s}:{server.server_address[1]}"
    print(f"job {run.job}: {shown} (Ctrl-C ends the page, not the job)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


class DashboardData:
    """What the page is told of one run."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._status: dict[str, Any] = {}
        self._asked_at = 0.0

    def __call__(self, since: float) -> bytes:
        files = self._run.files
        points = [one for one in time_series.read(files.online, OnlinePoint) if one.at > since]
        told = story.sentences(self._run.card.began_at, events.read(files.events))[-SENTENCES:]
        return msgspec.json.encode(
            {
                "job": self._run.job,
                "running": self._run.running,
                "now": time.time(),
                "status": self._look(),
                "points": points,
                "forecast": read_plain(files.forecast),
                "story": told,
            }
        )

    def _look(self) -> dict[str, Any]:
        if time.monotonic() > self._asked_at + STATUS_S:
            status = LocalJobHandle(self._run).status()
            plain = exit_status.as_object(status, places_of(self._run.files))
            self._status = {name: value for name, value in plain.items() if name != "members"}
            self._asked_at = time.monotonic()
        return self._status


def read_plain(path: pathlib.Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
