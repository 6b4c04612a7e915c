"""A record rebuilt from its journal is equal: random histories, with and without snapshots."""

import asyncio
import contextlib
import random

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format.manifest import Manifest, SavedProgress, ScriptStates
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder, Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import events
from springtide.master import main
from springtide.master.core.journal import Journal
from springtide.master.core.record import DONE, JobRecord, encode_call
from springtide.master.main import build_service
from springtide.master.servers import recovery
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ClaimDone, ClaimRequest, ShareRequest
from springtide.rpc.transport.listener import Peer
from springtide.telemetry.events import EventLog
from tests.oracles import ledger_invariants

SPEC = JobSpec(name="job", workers=3, relaunches=1000, silence_s=1e9, join_s=1e9, worker_memory=2**30)
CARD = DatasetCard(samples=5000, batch_size=10, shard_batches=4)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Members:
    """Random behaviour of workers, a server and an agent."""

    def __init__(self, master, clock, seed):
        self.master, self.clock, self.chance = master, clock, random.Random(seed)
        self.agent, self.peers, self.held = Peer(address="agent"), {}, {}
        self.notes = {}
        """Of checkpoints, by number."""

    async def begin(self):
        await self.master.handle(self.agent, messages.JoinAgent(1))
        server = Peer(address="server")
        await self.master.handle(server, messages.JoinServer(0, 2))
        await self.master.handle(server, messages.ServerReady("host:1"))

    async def read_manifest(self, where, number, lineage):
        """In place of the one on disk."""
        progress = SavedProgress(ledger=msgspec.msgpack.encode(self.notes[number]))
        return Manifest(
            job="job", run="run", number=number, begun_at=0.0, completed_at=0.0, slots=64, seed=0, progress=progress
        )

    async def act(self):
        """Do one random action; refusals are allowed."""
        self.clock.now += self.chance.uniform(0, 0.2)
        wanted = [each for each in self.master.state.wanted() if each.role.kind is RoleKind.WORKER]
        if not wanted:
            return
        if self.chance.random() < 0.03:
            self.notes[len(self.notes) + 1] = self.master.record.book.note()
            self.master.context.apply(events.CheckpointSaved(len(self.notes)))
        if self.notes and self.chance.random() < 0.03:
            await self.lose_server()
        each = self.chance.choice(wanted)
        with contextlib.suppress(errors.SpringtideError):
            await self.do(each.role, each.incarnation)

    async def lose_server(self):
        """It dies; its next life brings back any of the checkpoints, or dies at it."""
        role = Role(RoleKind.SERVER, 0)
        life = self.master.state.node(role).incarnation
        await self.master.handle(
            self.agent, messages.RoleExitReport(RoleExit(role=role, pid=2, code=1, incarnation=life))
        )
        server = Peer(address="server")
        await self.master.handle(server, messages.JoinServer(0, 3 + life, life + 1))
        if self.chance.random() < 0.2:
            await self.lose_server()
        else:
            number = self.chance.choice(list(self.notes))
            await self.master.handle(server, messages.ServerReady(f"host:{2 + life}", number, "a folder"))

    async def do(self, role, incarnation):
        holder = LeaseHolder(role.rank, incarnation)
        peer = self.peers.get(holder)
        if peer is None:
            peer = self.peers[holder] = Peer(address=str(holder))
            await self.master.handle(peer, messages.JoinWorker(role.rank, 100 + role.rank, incarnation))
        mine = self.held.setdefault(holder, {})
        rare = ["exit", "scale", "share", "claim", "fail", "tick", "epoch"]
        kind = self.chance.choice(["lease"] * 5 + ["beat"] * 8 + rare)
        match kind:
            case "lease":
                words = tuple(mine.values())
                reply = await self.master.handle(
                    peer,
                    messages.LeaseRequest(CARD, words, (), self.chance.randint(1, 4), era=self.master.record.book.era),
                )
                for grant in getattr(reply, "grants", ()):
                    mine[grant.shard, grant.first] = Progress(grant.shard, grant.first, grant.first, grant.end)
            case "beat":
                for key, word in list(mine.items()):
                    offset = min(word.end, word.offset + self.chance.choice([0, 10, 20, 40]))
                    mine[key] = word._replace(offset=offset)
                era = self.master.record.book.era - (self.chance.random() < 0.1)
                objects = {"schedule": bytes([self.chance.randrange(256)])} if self.chance.random() < 0.3 else {}
                place = EpochPlace(0, 0, self.chance.randrange(3)) if objects else None
                await self.master.handle(
                    peer, messages.Heartbeat(None, tuple(mine.values()), era=era, objects=objects, place=place)
                )
                self.held[holder] = {key: word for key, word in mine.items() if word.offset < word.end}
            case "epoch":
                begun = messages.EpochBegun(EpochPlace(self.chance.randrange(4), 0, 0), {"schedule": b"begun"})
                await self.master.handle(peer, begun)
            case "exit":
                how = self.chance.choice([{"signal": "SIGKILL"}, {"signal": "SIGKILL", "oom": True}, {"code": 0}])
                ended = RoleExit(role=role, pid=1, incarnation=incarnation, **how)
                await self.master.handle(self.agent, messages.RoleExitReport(ended))
            case "scale":
                await self.master.handle(Peer(address="cli"), messages.ScaleRequest(self.chance.randint(1, 5)))
            case "share":
                await self.master.handle(peer, ShareRequest("key", bytes([self.chance.randrange(256)])))
            case "claim":
                key = f"thing {self.chance.randrange(3)}"
                if self.master.record.shared.claims.get(key) in (None, DONE):
                    reply = await self.master.handle(peer, ClaimRequest(key))
                    if reply.yours and self.chance.random() < 0.5:
                        await self.master.handle(peer, ClaimDone(key))
            case "fail":
                if mine:
                    word = self.chance.choice(list(mine.values()))
                    failure = ReadFailure(word.shard, word.first, word.offset, "OSError: no")
                    await self.master.handle(peer, messages.Heartbeat(None, (), (failure,)))
            case "tick":
                self.master.tick()


def comparable_bytes(record):
    """A record as bytes without heartbeat times, which no journal keeps."""
    copy = JobRecord.from_bytes(record.to_bytes())
    for node in copy.state.nodes.values():
        node.heard_at = 0.0
    copy.book.renew(0.0)
    copy.span.last_at = 0.0
    ledger_invariants.check(copy.book)
    return copy.to_bytes()


@pytest.mark.parametrize("snapshots", [0, 40])
def test_record_rebuilt_from_its_journal_is_equal(tmp_path, seed, snapshots, monkeypatch):
    async def test():
        story = EventLog(tmp_path / "events.jsonl")
        kinds, returns = set(), 0
        for history in range(15):
            clock, path = Clock(), tmp_path / f"{history}.db"
            journal = Journal(path, term=1, now=0.0)
            master = build_service(JobRecord(SPEC), story, clock, journal)
            members = Members(master, clock, seed + history)
            monkeypatch.setattr(recovery, "read_manifest", members.read_manifest)
            await members.begin()
            for turn in range(190):
                await members.act()
                if snapshots and turn % snapshots == snapshots - 1:
                    journal.save(master.record.to_bytes())
            kinds |= {type(each).__name__ for each in master.record.book.passes}
            returns += master.record.book.era
            journal.close()
            again = Journal(path, term=2, now=0.0)
            snapshot, kept = again.read()
            assert kept and bool(snapshot) == bool(snapshots)
            assert comparable_bytes(main.rebuild(SPEC, snapshot, kept)) == comparable_bytes(master.record), (
                f"history {history}"
            )
            again.close()
        assert kinds and returns > 10
        story.close()

    asyncio.run(test())


def test_successor_master_ignores_late_messages_of_a_dead_worker(tmp_path):
    async def test():
        story = EventLog(tmp_path / "events.jsonl")
        journal = Journal(tmp_path / "journal.db", term=1, now=0.0)
        first = main.open_service(SPEC, story, journal)
        members = Members(first, Clock(), 0)
        await members.begin()
        peer = Peer(address="worker-0")
        await first.handle(peer, messages.JoinWorker(0, 7))
        leased = await first.handle(peer, messages.LeaseRequest(CARD))
        journal.close()  # killed: nothing more is said

        journal = Journal(tmp_path / "journal.db", term=2, now=0.0)
        second = main.open_service(SPEC, story, journal)
        assert second.status().master.decision == "took over as master number 2"
        assert (second.status().phase, second.status().data.shards_leased, second.status().master.term) == (
            JobPhase.RUNNING,
            1,
            2,
        )
        peer = Peer(address="worker-0")
        await second.handle(peer, messages.JoinWorker(0, 7))
        again = await second.handle(peer, messages.LeaseRequest(CARD))  # it never heard the answer
        assert again == leased
        agent = Peer(address="agent")
        await second.handle(agent, messages.JoinAgent(1))
        ended = RoleExit(role=Role(RoleKind.WORKER, 0), pid=7, signal="SIGKILL")
        await second.handle(agent, messages.RoleExitReport(ended))
        assert second.status().data.shards_leased == 0
        (grant,) = leased.grants
        word = Progress(grant.shard, grant.first, grant.end, grant.end)
        for request in (messages.Heartbeat(None, (word,)), messages.LeaseRequest(CARD)):
            with pytest.raises(errors.Fenced):
                await second.handle(peer, request)
        assert second.status().data.shards_done == 0
        journal.close()
        story.close()

    asyncio.run(test())


def test_superseded_master_sends_no_replies(tmp_path):
    async def test():
        story = EventLog(tmp_path / "events.jsonl")
        old = Journal(tmp_path / "journal.db", term=1, now=0.0)
        master = main.open_service(SPEC, story, old)
        new = Journal(tmp_path / "journal.db", term=2, now=0.0)
        asked = asyncio.create_task(master.handle(Peer(address="server-0"), messages.JoinServer(0, 7)))
        await asyncio.wait_for(master.context.over.wait(), 10)
        assert not asked.done()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert new.read() == (None, [])
        old.close()
        new.close()
        story.close()

    asyncio.run(test())


def test_one_time_task_of_a_lost_worker_is_done_by_another():
    record = JobRecord(SPEC)
    one, two = LeaseHolder(0, 0), LeaseHolder(1, 0)
    assert record.shared.claim("weights", one) is True
    assert record.shared.claim("weights", one) is True  # asked again over a new connection
    assert record.shared.claim("weights", two) is None
    for role in (Role(RoleKind.WORKER, 0), Role(RoleKind.WORKER, 1)):
        record.apply(events.RoleJoined(role), 0.0)
    record.apply(events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, 0), pid=0, signal="SIGKILL")), 1.0)
    assert record.shared.claim("weights", two) is True
    record.shared.finish("weights", one)  # the word of the one that was lost
    assert record.shared.claims["weights"] == two
    record.shared.finish("weights", two)
    assert record.shared.claim("weights", LeaseHolder(0, 1)) is False


def test_worker_gets_its_own_objects_and_a_new_one_those_of_the_lowest_rank():
    record = JobRecord(SPEC)
    assert record.scripts.objects_for(0) == {}
    record.scripts.remember(2, {"schedule": b"of 2", "counter": b"of 2"})
    record.scripts.remember(1, {"schedule": b"of 1"})
    assert record.scripts.objects_for(2) == {"schedule": b"of 2", "counter": b"of 2"}
    assert record.scripts.objects_for(1) == {"schedule": b"of 1", "counter": b"of 2"}
    assert record.scripts.objects_for(7) == {"schedule": b"of 1", "counter": b"of 2"}


def test_added_worker_starts_at_the_others_epoch_even_if_its_rank_existed_before():
    async def test():
        record = JobRecord(JobSpec(name="job", workers=2))
        for rank, epoch in ((0, 1), (1, 1)):
            record.scripts.remember(rank, {"schedule": b"early"}, EpochPlace(epoch, epoch, epoch + 1))
        record.apply(events.WorkersScaled(1, "a test"), 1.0)
        assert record.scripts.place_for(1).epoch == 1, "it is still there"
        record.scripts.remember(0, {"schedule": b"late"}, EpochPlace(5, 5, 6))
        record.apply(events.WorkersScaled(2, "a test"), 2.0)
        assert record.scripts.place_for(1).epoch == 5 and record.scripts.objects_for(1) == {"schedule": b"late"}

    asyncio.run(test())


def test_replayed_call_gets_the_arguments_of_the_first():
    states = ScriptStates(claims=("weights",), objects={1: {"schedule": b"7"}}, places={1: EpochPlace(0, 0, 0)})
    first, again = JobRecord(JobSpec(name="job")), JobRecord(JobSpec(name="job"))
    for change, *arguments in (
        ("resume", JobProgress(), states),
        ("restore", JobProgress(), states),
        ("restore", JobProgress(), None),
        ("apply", events.StopRequested("enough"), 3.0),
    ):
        getattr(first, change)(*arguments)
        again.replay(encode_call(getattr(again, change), arguments, {}))
    again.replay(encode_call(again.book.keep, (JobProgress(),), {"floors": False}))
    first.book.keep(JobProgress(), floors=False)
    assert again.to_bytes() == first.to_bytes()
    assert again.scripts.objects == states.objects and again.shared.claims == {"weights": DONE}
