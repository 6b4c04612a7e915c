"""Pod logs are followed until the job is over or the reader stops."""

import asyncio
from types import SimpleNamespace

import pytest

from springtide.platforms.agent.job_handle import LogLine
from springtide.platforms.k8s.client import job_handle
from springtide.platforms.k8s.objects import names


class GrowingJob:
    """A cluster whose job has one more worker at each poll and is over at the third."""

    looks = 0
    closed = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.closed = True

    async def get(self, kind, name):
        self.looks += 1
        return self.looks

    async def list(self, kind, *, labels):
        labels = [{names.ROLE: "worker", names.RANK: str(rank)} for rank in range(self.looks)]
        return SimpleNamespace(
            items=[
                {"metadata": {"name": f"pod-{one[names.RANK]}", "uid": one[names.RANK], "labels": one}}
                for one in labels
            ]
        )

    async def logs(self, name, *, container, lines, follow=False):
        for number in range(2):
            yield f"{name} {number}"
            await asyncio.sleep(0)


@pytest.fixture
def job(monkeypatch):
    made = GrowingJob()
    monkeypatch.setattr(job_handle.Client, "at", lambda where: made)
    monkeypatch.setattr(job_handle.job_objects, "read", lambda looks: SimpleNamespace(over=looks == 3))
    monkeypatch.setattr(job_handle, "LOOK_S", 0.01)
    return made


def test_followed_logs_include_pods_that_start_later(job):
    found = list(job_handle.read_logs({}, "ctr", [], lines=5, follow=True))
    assert sorted(found) == [LogLine(f"worker-{rank}", f"pod-{rank} {line}") for rank in range(3) for line in range(2)]
    assert job.closed


def test_closed_reader_ends_following(job):
    assert next(iter(job_handle.read_logs({}, "ctr", ["worker-0"], lines=5, follow=True))).role == "worker-0"
    assert job.closed
