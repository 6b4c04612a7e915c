"""The master's replies to its members, without a socket."""

import asyncio
import contextlib
import dataclasses
import json
import pathlib

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind, RoleUsage
from springtide.domain.data.leases import Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.master.core.record import JobRecord
from springtide.master.data import leases
from springtide.master.main import build_service
from springtide.rpc.messages import data_workers, messages
from springtide.rpc.messages.types import MemberReport
from springtide.rpc.transport.listener import Peer
from springtide.telemetry.events import EventLog
from tests.waiting import soon

CARD = DatasetCard(samples=20, batch_size=10, shard_batches=1)  # two shards
HELD, DONE = Progress(0, 0, 0, 10), Progress(0, 0, 10, 10)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def with_desk(test, tmp_path, path=None, **spec):
    """Run an async test with a fresh desk."""

    async def run():
        story = EventLog(path or tmp_path / "events.jsonl")
        try:
            clock = Clock()
            await test(build_service(JobRecord(JobSpec(name="job", **spec)), story, clock), clock)
        finally:
            with contextlib.suppress(errors.DiskFull):
                story.close()

    asyncio.run(run())


async def join_all_roles(master, *, servers=1, workers=1):
    """All roles join; their peers by name."""
    peers = {name: Peer(address=name) for name in ("agent", *(f"server-{n}" for n in range(servers)))}
    peers |= {f"worker-{n}": Peer(address=f"worker-{n}") for n in range(workers)}
    await master.handle(peers["agent"], messages.JoinAgent(1))
    joins = [
        asyncio.create_task(master.handle(peers[f"worker-{n}"], messages.JoinWorker(n, 2))) for n in range(workers)
    ]
    for n in range(servers):
        await master.handle(peers[f"server-{n}"], messages.JoinServer(n, 3))
    ready = [
        asyncio.create_task(master.handle(peers[f"server-{n}"], messages.ServerReady(f"host:{n}")))
        for n in range(servers)
    ]
    placed, welcomes = await asyncio.gather(*ready), await asyncio.gather(*joins)
    assert {each.placement for each in placed} == {each.placement for each in welcomes}
    assert welcomes[0].servers == tuple(f"host:{n}" for n in range(servers))
    return peers


def test_shards_are_leased_once_and_an_idle_worker_waits_for_the_last(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        first = await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
        second = await master.handle(peers["worker-1"], messages.LeaseRequest(CARD))
        assert (first.grants[0].shard, second.grants[0].shard) == (0, 1)
        idle = asyncio.create_task(master.handle(peers["worker-0"], messages.LeaseRequest(CARD, (DONE,))))
        await soon(lambda: master.status().data.shards_done)
        assert not idle.done()
        await master.handle(peers["worker-1"], messages.Heartbeat(None, (Progress(1, 0, 10, 10),)))
        assert await idle == messages.DataEnd()
        assert master.status().data.shards_done == master.status().data.shards_total == 2

    with_desk(test, tmp_path, workers=2)


def test_samples_trained_during_master_downtime_cause_no_rate_spike(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master)
        card = dataclasses.replace(CARD, samples=10_000, shard_batches=100)
        (grant,) = (await master.handle(peers["worker-0"], messages.LeaseRequest(card))).grants
        clock.now = 10.0
        await master.handle(peers["worker-0"], messages.Heartbeat(None, (Progress(grant.shard, 0, 100, grant.end),)))
        clock.now = 13.5
        with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as story:
            successor = build_service(master.record, story, clock, term=2)
            successor.take_over()
            await successor.handle(peers["worker-0"], messages.JoinWorker(0, 2, 0))
            for clock.now, trained in ((13.6, 400), (14.0, 500)):
                words = (Progress(grant.shard, 0, trained, grant.end),)
                await successor.handle(peers["worker-0"], messages.Heartbeat(MemberReport(samples=trained), words))
            assert successor.status().training.samples_per_s == 100

    with_desk(test, tmp_path)


def test_loss_value_of_a_lost_worker_is_not_the_jobs(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        for name, loss in (("worker-0", 9.0), ("worker-1", 0.5)):
            await master.handle(peers[name], messages.Heartbeat(MemberReport(samples=100, loss=loss)))
        killed = RoleExit(role=Role(RoleKind.WORKER, 0), pid=2, signal="SIGKILL")
        await master.handle(peers["agent"], messages.RoleExitReport(killed))
        assert master.status().training.loss == 0.5

    with_desk(test, tmp_path, workers=2)


def test_long_lease_wait_is_answered_so_the_worker_can_report(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HOLD_S", 0.01)

    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
        await master.handle(peers["worker-0"], messages.LeaseRequest(CARD, (HELD,)))
        assert await master.handle(peers["worker-1"], messages.LeaseRequest(CARD)) == messages.WaitReply()

    with_desk(test, tmp_path, workers=2)


def test_job_with_unreadable_samples_fails_and_names_them(tmp_path):
    async def test(master, clock):
        worker = (await join_all_roles(master))["worker-0"]
        words = ()
        while isinstance(
            leased := await master.handle(worker, messages.LeaseRequest(CARD, words)), messages.LeaseReply
        ):
            (grant,) = leased.grants
            words = (Progress(grant.shard, 0, 10 * grant.shard, 10 * grant.shard),)
            failures = () if grant.shard else (ReadFailure(0, 0, 0, "OSError: bad disk"),)
            pulse = await master.handle(worker, messages.Heartbeat(None, words, failures))
            assert not pulse.revoked
        await master.handle(worker, messages.FinishRequest())
        status = master.status()
        assert (status.phase, status.data.shards_done, len(status.data.poisoned)) == (JobPhase.FAILED, 1, 1)
        assert status.why == (
            "samples 0 to 10 of shard 0 (epoch 0) could not be read, tried 3 times: OSError: bad disk"
        )

    with_desk(test, tmp_path)


def test_job_with_only_unreadable_data_fails_at_once(tmp_path):
    async def test(master, clock):
        worker = (await join_all_roles(master))["worker-0"]
        card = dataclasses.replace(CARD, samples=10_000)
        for shard in range(3):
            assert master.status().phase is JobPhase.RUNNING
            words = tuple(Progress(before, 0, 0, 0) for before in range(shard))
            await master.handle(worker, messages.LeaseRequest(card, words))
            failures = (ReadFailure(shard, 0, 0, "KeyError: 'x' (train.py:7)"),)
            await master.handle(worker, messages.Heartbeat(None, (), failures))
        assert master.status().phase is JobPhase.FAILED
        assert master.status().why == "no worker can read the data: KeyError: 'x' (train.py:7)"

    with_desk(test, tmp_path)


def test_draining_reaches_async_workers_by_heartbeat_and_bsp_ranks_by_lease(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        card = dataclasses.replace(CARD, in_step=master.state.spec.sync == "bsp")
        await master.handle(peers["worker-0"], messages.LeaseRequest(card))
        await master.handle(peers["agent"], messages.StopRequest("Ctrl-C"))
        pulse = await master.handle(peers["worker-0"], messages.Heartbeat())
        assert pulse.drain is (master.state.spec.sync == "async")
        behind = await master.handle(peers["worker-1"], messages.LeaseRequest(card, ()))
        if master.state.spec.sync == "bsp":
            assert behind.grants[0].shard == 0  # the other rank has begun it
            rest = await master.handle(peers["worker-1"], messages.LeaseRequest(card, (DONE,)))
            assert rest == messages.DataEnd(stop=True)
        else:
            assert behind == messages.DataEnd(stop=True)
        assert await master.handle(peers["worker-0"], messages.LeaseRequest(card, (DONE,))) == messages.DataEnd(
            stop=True
        )
        for worker in ("worker-0", "worker-1"):
            await master.handle(peers[worker], messages.FinishRequest())
        assert master.status().phase is JobPhase.STOPPED

    for sync in ("async", "bsp"):
        with_desk(test, tmp_path, workers=2, sync=sync)


def test_status_sums_member_reports(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master)
        clock.now = 5.0
        await master.handle(peers["worker-0"], messages.Heartbeat(MemberReport(samples=100, loss=0.5)))
        clock.now = 7.0
        await master.handle(peers["worker-0"], messages.FinishRequest((), MemberReport(samples=300, loss=0.25)))
        status = master.status()
        assert (status.phase, status.samples, status.training.loss, status.elapsed_s) == (
            JobPhase.FINISHED,
            300,
            0.25,
            7.0,
        )
        assert status.training.samples_per_s == pytest.approx(100)
        clock.now = 99.0
        assert master.status().elapsed_s == 7.0

    with_desk(test, tmp_path)


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_end_of_data_is_logged_with_the_number_of_trained_samples(tmp_path, sync):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        card = dataclasses.replace(CARD, in_step=sync == "bsp")
        words = {"worker-0": (), "worker-1": ()}
        for _ in range(2 if card.in_step else 1):  # in step both have a part of each shard, else each has one shard
            for name, done in words.items():
                leased = await master.handle(peers[name], messages.LeaseRequest(card, done))
                words[name] = tuple(Progress(each.shard, each.first, each.end, each.end) for each in leased.grants)
                await master.handle(peers[name], messages.Heartbeat(MemberReport(samples=3)))
        for name, done in words.items():
            await master.handle(peers[name], messages.FinishRequest(done))  # without a last report
        assert master.status().phase is JobPhase.FINISHED
        *_, end = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
        assert (end["phase"], end["samples"], master.status().samples) == ("finished", 20, 20)

    with_desk(test, tmp_path, workers=2, sync=sync)


def test_role_may_not_send_requests_of_another_role(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master)
        for who, request in (
            ("server-0", messages.LeaseRequest(CARD)),
            ("worker-0", messages.ShutdownRequest()),
            ("agent", messages.FinishRequest()),
        ):
            with pytest.raises(errors.BadInput, match=f"may not send {type(request).__name__}"):
                await master.handle(peers[who], request)
        with pytest.raises(errors.BadInput, match="Heartbeat from a process that has not joined"):
            await master.handle(Peer(address="stranger"), messages.Heartbeat())

    with_desk(test, tmp_path)


def test_agent_gets_the_wanted_roles_and_its_measurements_are_shown(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        worker = Role(RoleKind.WORKER, 1)
        used = RoleUsage(role=worker, cpu_s=1.5, memory=100)
        outlook = await master.handle(peers["agent"], messages.AgentPoll((used,)))
        assert [(str(want.role), want.cpu, want.memory) for want in outlook.wanted] == [
            ("server-0", None, None),
            ("worker-0", 0.5, None),
            ("worker-1", 0.5, None),
        ]
        assert {str(member.role): member.usage for member in outlook.status.members}["worker-1"] == used

    with_desk(test, tmp_path, workers=2, worker_cpu=0.5)


def test_event_log_has_joins_and_the_final_outcome(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master)
        ended = RoleExit(role=Role(RoleKind.SERVER, 0), pid=3, signal="SIGKILL")
        await master.handle(peers["agent"], messages.RoleExitReport(ended))
        assert master.status().why.startswith("server-0 (pid 3) was killed by SIGKILL")

    with_desk(test, tmp_path)
    story = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in story] == ["joined", "joined", "ready", "placed", "phase", "exited", "phase"]
    assert story[-1]["phase"] == "failed"


def test_unwritable_event_log_is_reported_and_the_job_continues(tmp_path):
    async def test(master, clock):
        await master.handle(Peer(address="server-0"), messages.JoinServer(0, 7))
        status = master.status()
        assert status.phase is JobPhase.STARTING
        assert status.master.disk_trouble.startswith("no room left to write /dev/full")

    with_desk(test, tmp_path, path=pathlib.Path("/dev/full"))


FORGED = [
    ("worker", messages.JoinServer(0, 3)),
    ("server", messages.JoinWorker(0, 2)),
    ("data-worker", messages.JoinWorker(0, 2)),
    ("worker", data_workers.JoinDataWorker(0, 2)),
    ("worker", messages.JoinAgent(1)),
    ("server", messages.ScaleRequest(3, None)),
    ("worker", messages.StopRequest("")),
    ("worker", messages.EvictionNotice(Role(RoleKind.SERVER, 0), 3, "")),
    ("server", messages.ScriptError(0, "boom")),
]


@pytest.mark.parametrize(("certified", "request_"), FORGED)
def test_request_in_the_name_of_another_role_is_refused(certified, request_, tmp_path):
    async def test(master, clock):
        await join_all_roles(master)
        before = master.status()
        with pytest.raises(errors.Forbidden, match=f"whose certificate is for a {certified}; only these roles"):
            await master.handle(Peer(address="10.0.0.9:1", certified=certified), request_)
        assert master.status() == before

    with_desk(test, tmp_path)


def test_roles_with_certificates_of_their_own_kind_are_served(tmp_path):
    async def test(master, clock):
        agent = Peer(address="agent", certified="agent")
        await master.handle(agent, messages.JoinAgent(1))
        await master.handle(Peer(address="server", certified="server"), messages.JoinServer(0, 3))
        for ruler in ("agent", "master"):
            command = Peer(address="command", certified=ruler)
            await master.handle(command, messages.ScaleRequest(2, None))
        await master.handle(Peer(address="worker", certified="worker"), messages.StatusRequest())

    with_desk(test, tmp_path)


def test_job_without_checkpoints_refuses_to_begin_one(tmp_path):
    async def test(master, clock):
        with pytest.raises(errors.BadInput, match="makes no checkpoints"):
            await master.handle(Peer(address="a command"), messages.CheckpointRequest())

    with_desk(test, tmp_path)
