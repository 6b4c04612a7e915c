"""What `springtide demo` does to its own job: `kill -9` of a worker, later of the master, announced and noted.

In: the job's status as it runs; who has which process id, from the story and from `master.json`. Out: two dead
processes, and what became of it: when the worker's next life joined, when the next master listened.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from springtide.rpc import whereabouts
from springtide.rpc.messages import JobStatus
from springtide.telemetry import events
from springtide.telemetry.logs import RunFiles

KILL_WORKER_AT = 0.3
KILL_MASTER_AT = 0.6
"""Parts of all samples."""


@dataclass(slots=True)
class Saboteur:
    """Kills one worker and one master on the way. A witness of `cli.run.execute`."""

    samples: int
    """Of the whole job."""
    worker: str
    worker_pid: int = 0
    master_pid: int = 0

    def __call__(self, status: JobStatus, files: RunFiles, say: Callable[[str], None]) -> None:
        """Is it time?"""
        if not self.worker_pid and status.samples >= KILL_WORKER_AT * self.samples:
            lives = [event for event in events.read(files.events) if event["event"] == "joined"]
            self.worker_pid = next((life["pid"] for life in lives if life["role"] == self.worker), 0)
            if self.worker_pid:
                say(f"now: kill -9 {self.worker} (pid {self.worker_pid}); its unfinished shards go to others")
                os.kill(self.worker_pid, signal.SIGKILL)
        elif not self.master_pid and status.samples >= KILL_MASTER_AT * self.samples:
            found = whereabouts.read(files.master)
            self.master_pid = found.pid if found else 0
            if self.master_pid:
                say(f"now: kill -9 the master (pid {self.master_pid}); the others train on meanwhile")
                os.kill(self.master_pid, signal.SIGKILL)

    def report(self, files: RunFiles) -> list[str]:
        """What was done and what came of it, a line each."""
        story, lines = events.read(files.events), []
        dead = next((event["at"] for event in story if _is_end_of(event, self.worker, self.worker_pid)), None)
        if dead is not None:
            back = next(
                (e["at"] for e in story if e["event"] == "joined" and e["at"] > dead and e["role"] == self.worker), None
            )
            later = "the others did its work" if back is None else f"its next life joined {back - dead:.1f} s later"
            lines.append(f"killed  {self.worker}: {later}")
        for event in story:
            if event["event"] == "master_replaced":
                lines.append(f"killed  the master: the next one listened {event['seconds']:.1f} s later")
        return lines


def _is_end_of(event: dict[str, object], role: str, pid: int) -> bool:
    return event["event"] == "exited" and event["role"] == role and f"(pid {pid})" in str(event["how"])
