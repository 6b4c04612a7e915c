"""Each process of a job gets its GPU, keeps it over restarts, and releases it."""

import asyncio
import json
import sys

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from springtide.domain.core.resources import ProcessLimits, workers_on
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local.gpu_assignment import GpuAssignments
from springtide.platforms.local.platform import LocalPlatform
from springtide.telemetry import logs
from springtide.telemetry.host.gpus import VARIABLE


def worker(rank, incarnation=0):
    return Life(Role(RoleKind.WORKER, rank), incarnation)


@given(gpus=st.integers(1, 8), share=st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.6, 1.0]), data=st.data())
def test_workers_share_gpus_evenly_and_each_uses_at_most_one(gpus, share, data):
    pool = GpuAssignments(tuple("abcdefgh"[:gpus]))
    count = data.draw(st.integers(1, workers_on(gpus, share)))
    given_out = [pool.assign(worker(rank), share) for rank in range(count)]
    counts = [given_out.count(gpu) for gpu in pool.gpus]
    assert max(counts) - min(counts) <= 1
    assert max(counts) * share <= 1 + 1e-6


class Histories(RuleBasedStateMachine):
    """Workers that start, restart and leave in any order, never more than there is room for."""

    def __init__(self):
        super().__init__()
        self.pool = GpuAssignments(("a", "b", "c"))
        self.lives = {}
        self.before = {}

    @precondition(lambda self: len(self.lives) < 6)
    @rule(rank=st.integers(0, 9))
    def start(self, rank):
        if rank not in self.lives:
            self.begin(rank)

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), overlaps=st.booleans())
    def restart(self, data, overlaps):
        rank = data.draw(st.sampled_from(sorted(self.lives)))
        old, gpu = self.lives[rank], self.before[rank]
        if not overlaps:
            self.pool.release(old)
        assert self.begin(rank) == gpu, "nobody took its place, so it is still there"
        if overlaps:
            self.pool.release(old)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def leave(self, data):
        self.pool.release(self.lives.pop(data.draw(st.sampled_from(sorted(self.lives)))))

    def begin(self, rank):
        incarnation = self.lives[rank].incarnation + 1 if rank in self.lives else 0
        self.lives[rank] = worker(rank, incarnation)
        self.before[rank] = self.pool.assign(self.lives[rank], 0.5)
        return self.before[rank]

    @invariant()
    def each_gpu_has_at_most_two_halves(self):
        held = [share.gpu for share in self.pool.held.values()]
        assert len(held) == len(self.lives) and all(held.count(gpu) <= 2 for gpu in self.pool.gpus)


TestHistories = Histories.TestCase


def test_workers_without_a_gpu_request_are_assigned_round_robin():
    pool = GpuAssignments(("a", "b"))
    assert [pool.assign(worker(rank), None) for rank in range(4)] == ["a", "b", "a", "b"]


def test_servers_and_roles_without_gpu_see_none():
    pool = GpuAssignments(("a", "b"))
    assert pool.assign(Life(Role(RoleKind.SERVER, 0)), None) == ""
    assert pool.assign(Life(Role(RoleKind.MASTER)), None) == ""
    assert pool.assign(worker(0), 0.0) == ""
    assert not pool.held
    assert GpuAssignments(()).assign(worker(0), None) == ""


def test_data_worker_uses_a_gpu_not_reserved_by_a_worker():
    pool = GpuAssignments(("a", "b"))
    pool.assign(worker(0), 1.0)
    assert pool.assign(Life(Role(RoleKind.DATA_WORKER, 0)), None) == "b"
    assert pool.assign(worker(1), 1.0) == "b"


def test_role_process_sees_only_its_gpu_despite_job_variables(tmp_path, monkeypatch):
    (tmp_path / "show_gpu.py").write_text(
        f"import json, os, sys\nopen(sys.argv[1], 'w').write(json.dumps(os.environ[{VARIABLE!r}]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "0,1,2")

    async def body():
        platform = LocalPlatform(logs.make_run(tmp_path, "train"), gpus=GpuAssignments(("0", "2")))
        seen = []
        try:
            ended = []
            for life in (worker(0), worker(1), Life(Role(RoleKind.SERVER, 0))):
                path, end = tmp_path / f"{life}.json", asyncio.get_running_loop().create_future()
                launch = RoleLaunch(
                    life=life,
                    module="show_gpu",
                    arguments=[str(path)],
                    given={VARIABLE: "0,2"},
                    limits=ProcessLimits(gpu=1.0 if life.role.kind is RoleKind.WORKER else 0.0),
                )
                platform.start(launch, end.set_result)
                ended.append(end)
                seen.append(path)
            assert [(await end).code for end in ended] == [0, 0, 0], sys.path
        finally:
            platform.close()
        return [json.loads(path.read_text()) for path in seen]

    assert asyncio.run(body()) == ["0", "2", ""]
