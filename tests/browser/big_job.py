"""Serves a dashboard of an invented job with 10,000 shards and 200 roles, which changes every second: `python -m
tests.browser.big_job`. Prints the URL. It shows how much the page can draw, without a cluster."""

import math
import time
from types import SimpleNamespace

from springtide.dashboard import page_socket, server
from springtide.dashboard.access import AccessRules
from springtide.dashboard.documents import EventList, EventRow, JobHistory, JobList, JobPage
from springtide.dashboard.endpoints import DashboardSources
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.spec.job_spec import JobPhase
from springtide.launch.job_lookup import JobLocation
from springtide.rpc.messages.types import (
    DataStatus,
    JobMap,
    JobStatus,
    MemberReport,
    MemberView,
    RoleCount,
    RoleStatus,
    ShardMap,
    SlotMap,
    TrainingStatus,
)
from springtide.telemetry.progress import ProgressPoint

SHARDS, WORKERS, SERVERS, SLOTS = 10_000, 168, 32, 4096
BEGAN = time.time() - 3600
PHASES = {"data": 0.1, "pull_wait": 0.1, "forward": 0.3, "backward": 0.3, "push_wait": 0.1, "total": 1.0}


class BigJob:
    """Reader of the invented job."""

    where = JobLocation(folder="an invented job")

    def find(self, name):
        return SimpleNamespace(name=name)

    def jobs(self):
        return JobList(jobs=())

    def page(self, handle):
        now = time.time()
        done = int(now - BEGAN) % SHARDS
        status = JobStatus(
            name="big",
            phase=JobPhase.RUNNING,
            why="",
            elapsed_s=now - BEGAN,
            samples=done * 8192,
            training=TrainingStatus(samples_per_s=4e5 + 1e4 * math.sin(now), loss=0.45, trained_s=now - BEGAN),
            data=DataStatus(shards_done=done, shards_leased=WORKERS, shards_total=SHARDS),
            members=tuple(self.member(number, now) for number in range(WORKERS + SERVERS)),
            roles=RoleStatus(workers=RoleCount(WORKERS, WORKERS), servers=RoleCount(SERVERS, SERVERS)),
        )
        return JobPage(
            name="big",
            running=True,
            platform="local",
            script="train.py",
            arguments=(),
            began_at=BEGAN,
            now=now,
            status=status,
            mean_samples_per_s=4e5,
            decision="",
            places={},
            planned=False,
        )

    def member(self, number, now):
        kind = RoleKind.SERVER if number < SERVERS else RoleKind.WORKER
        role = Role(kind, number if kind is RoleKind.SERVER else number - SERVERS)
        steps = int((now - BEGAN) * 10)
        seconds = {} if kind is RoleKind.SERVER else {name: steps * 0.1 * share for name, share in PHASES.items()}
        counters = {"rows": 1e6, "table_bytes": 1e8, "lookup_ns": 1e9, "pulled_keys": 1e7, "pushed_keys": 1e7}
        return MemberView(
            role=role,
            alive=True,
            joined=True,
            state="joined",
            pid=1000 + number,
            report=MemberReport(step=steps, seconds=seconds, counters=counters if kind is RoleKind.SERVER else {}),
            usage=RoleUsage(role=role, cpu_s=(now - BEGAN) * 0.9, memory=2**29, cpu_limit=1.0, memory_limit=2**30),
        )

    def history(self, handle, since=0.0):
        first = max(BEGAN, math.floor(since) + 1)
        times = range(int(first), int(time.time()))
        points = (
            ProgressPoint(
                at=float(at),
                samples=at,
                samples_per_s=4e5 + 1e4 * math.sin(at),
                loss=0.45,
                workers=WORKERS,
                servers=SERVERS,
            )
            for at in times
        )
        return JobHistory(progress=tuple(points))

    def events(self, handle, after=-1):
        joined = [
            ("joined", f"{'server' if n < SERVERS else 'worker'}-{n if n < SERVERS else n - SERVERS}")
            for n in range(SERVERS + WORKERS)
        ]
        rows = [
            EventRow(
                number=number,
                at=BEGAN + number / 10,
                kind=kind,
                text="",
                role=role,
                inputs={"pid": 1, "incarnation": 0},
            )
            for number, (kind, role) in enumerate(joined)
        ]
        rows += [
            EventRow(
                number=len(rows) + number,
                at=BEGAN + 60 + 7 * number,
                kind="decision",
                text=f"decision {number}",
                why="invented",
            )
            for number in range(400)
        ]
        return EventList(events=tuple(rows[after + 1 :]))

    def map(self, handle):
        done = int(time.time() - BEGAN) % SHARDS
        states = "d" * done + "l" * WORKERS + "p" * (SHARDS - done - WORKERS)
        owners = tuple(slot % SERVERS for slot in range(SLOTS))
        load = tuple(100.0 + slot % 97 for slot in range(SLOTS))
        return JobMap(
            shards=ShardMap(states=states, total=SHARDS), slots=SlotMap(owners=owners, bytes=load, requests=load)
        )


if __name__ == "__main__":
    token = page_socket.new_token()
    with page_socket.listen(page_socket.LOOPBACK, 0) as listener:
        print(page_socket.url_of(listener, token), flush=True)
        server.serve(listener, DashboardSources(BigJob(), "big"), AccessRules(host=page_socket.LOOPBACK, token=token))
