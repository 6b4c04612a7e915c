"""What `springtide demo` does to its own job: `kill -9` of a worker, of a server, of the master, announced and noted.

In: the job's status as it runs; who has which process id, from the story and from `master.json`. Out: dead processes,
and what became of it: when their next lives were there, how much was trained again, when the next master listened.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from springtide.rpc import whereabouts
from springtide.rpc.messages import JobStatus
from springtide.telemetry import events
from springtide.telemetry.logs import RunFiles

KILL_WORKER_AT = 0.3
KILL_SERVER_AT = 0.5
KILL_MASTER_AT = 0.7
"""Parts of all samples."""
MASTER = "the master"


@dataclass(slots=True)
class Saboteur:
    """Kills one worker, one server and one master on the way. A witness of `cli.run.execute`."""

    samples: int
    """Of the whole job."""
    worker: str
    server: str
    pids: dict[str, int] = field(default_factory=dict)
    """Whom it has killed."""

    def __call__(self, status: JobStatus, files: RunFiles, say: Callable[[str], None]) -> None:
        """Is it time?"""
        share = status.samples / self.samples
        if self.worker not in self.pids:
            if share >= KILL_WORKER_AT:
                self._kill(self.worker, living(files, self.worker), "its unfinished shards go to others", say)
        elif self.server not in self.pids:
            if share >= KILL_SERVER_AT and status.checkpoint:
                why = f"its slots come back from checkpoint {status.checkpoint}"
                self._kill(self.server, living(files, self.server), why, say)
        elif MASTER not in self.pids and share >= KILL_MASTER_AT:
            found = whereabouts.read(files.master)
            self._kill(MASTER, found.pid if found else 0, "the others train on meanwhile", say)

    def _kill(self, whom: str, pid: int, then: str, say: Callable[[str], None]) -> None:
        if pid:
            say(f"now: kill -9 {whom} (pid {pid}); {then}")
            os.kill(pid, signal.SIGKILL)
            self.pids[whom] = pid

    def report(self, files: RunFiles) -> list[str]:
        """What was done and what came of it, a line each."""
        story, lines = events.read(files.events), []
        if (dead := end_of(story, self.worker, self.pids.get(self.worker))) is not None:
            back = after(story, dead, "joined", self.worker)
            gap = "the others did its work" if back is None else f"its next life joined {back['at'] - dead:.1f} s later"
            lines.append(f"killed  {self.worker}: {gap}")
        if (dead := end_of(story, self.server, self.pids.get(self.server))) is not None:
            back = after(story, dead, "ready", self.server)
            gap = "it did not come back" if back is None else f"it served again {back['at'] - dead:.1f} s later"
            again = f", {back['samples_again']:,} clicks trained again" if back and "samples_again" in back else ""
            lines.append(f"killed  {self.server}: {gap}{again}")
        for event in story:
            if event["event"] == "master_replaced":
                lines.append(f"killed  the master: the next one listened {event['seconds']:.1f} s later")
        return lines


def living(files: RunFiles, role: str) -> int:
    """The process of a role that joined last; 0: none yet."""
    joined = [event for event in events.read(files.events) if event["event"] == "joined" and event["role"] == role]
    return int(joined[-1]["pid"]) if joined else 0


def end_of(story: list[dict[str, Any]], role: str, pid: int | None) -> float | None:
    """When that process was found dead."""
    ends = [event for event in story if event["event"] == "exited" and event["role"] == role]
    return next((float(event["at"]) for event in ends if f"(pid {pid})" in str(event["how"])), None)


def after(story: list[dict[str, Any]], at: float, kind: str, role: str) -> dict[str, Any] | None:
    """The first such event of a role after a moment."""
    return next((e for e in story if e["event"] == kind and e["at"] > at and e["role"] == role), None)
