"""Mirroring between servers: each stores the files of another one in the ring."""

import asyncio
import contextlib
import dataclasses
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import encode
from springtide.checkpoint.format.storage import open_store
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.model.checkpoints import Buddy, CheckpointRules, buddy_of
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.checkpoint.server_disks import MirrorDirectory, cost_of_a_host
from springtide.master.main import build_service
from springtide.rpc.messages.checkpoints import CopyReport, CopyRequest, SaveOrder, SaveRequest
from springtide.server import checkpoints, mirror
from springtide.telemetry.events import EventLog
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint.test_schedule import RULES, with_job

ORDER = SaveOrder(1, 5)


def server(rank):
    return Role(RoleKind.SERVER, rank)


def save_request(address, node=""):
    return SaveRequest(takes_copies_at=address, node=node)


@given(st.sets(st.integers(0, 50), min_size=2))
def test_every_server_has_another_server_as_buddy(ranks):
    buddies = {rank: buddy_of(rank, dict.fromkeys(ranks, "")) for rank in ranks}
    assert set(buddies.values()) == ranks and all(rank != buddy for rank, buddy in buddies.items())


def test_single_server_has_no_buddy():
    assert buddy_of(0, {0: ""}) is None and buddy_of(0, {}) is None


def test_save_order_names_the_address_of_the_buddys_current_incarnation():
    buddies = MirrorDirectory(CheckpointRules(every_s=1.0, mirror=True))
    lives = {0: "server-0.0", 1: "server-1.1", 4: "server-4.0"}
    for rank, life, port in ((0, 0, 10), (1, 0, 11), (4, 0, 14)):
        buddies.on_listening(server(rank), life, save_request(f"host:{port}"))
    assert not buddies.known(lives)
    assert buddies.named(ORDER, server(0), lives).buddy == Buddy("server-4", "host:14"), "an earlier life is no buddy"
    buddies.on_listening(server(1), 1, save_request("host:21"))
    assert buddies.known(lives)
    named = {rank: buddies.named(ORDER, server(rank), lives).buddy for rank in lives}
    assert named == {0: Buddy("server-1", "host:21"), 1: Buddy("server-4", "host:14"), 4: Buddy("server-0", "host:10")}
    assert buddies.named(ORDER, server(0), {0: "server-0.0"}).buddy is None


def test_without_mirroring_no_buddy_is_named_or_awaited():
    buddies = MirrorDirectory(CheckpointRules(every_s=1.0))
    assert buddies.known({0: "server-0.0", 1: "server-1.0"})
    assert buddies.named(ORDER, server(0), {0: "server-0.0", 1: "server-1.0"}) is ORDER


def give_private_disks(job, tmp_path):
    """From now on its servers write to disks of their own."""
    for rank, server in enumerate(job.servers):
        server.disk = tmp_path / f"host-{rank}"
        server.saver = checkpoints.SlotSaver(
            server, server.disk, f"server-{rank}.0", run=stores.RUN, node=f"n{rank}", rest=lambda _: None
        )


async def speak(job, rank, number=0):
    """A server asks for orders."""
    request = SaveRequest(1, number, 0, f"host:{rank}", f"n{rank}")
    return await job.ask(f"server-{rank}", request)


async def save(job):
    """A checkpoint by all servers."""
    for rank, server in enumerate(job.servers):
        order = await asyncio.wait_for(speak(job, rank), 5)
        await job.ask(f"server-{rank}", server.saver.save(order))
    await job.published()


async def copy(job, *ranks, break_off=""):
    """Servers upload what they are asked to; wait until the master has handled it."""
    for rank in ranks or range(len(job.servers)):
        order = await asyncio.wait_for(job.ask(f"server-{rank}", CopyRequest()), 5)
        said = CopyReport(order.id, error=break_off) if break_off else mirror.upload_part(job.servers[rank].disk, order)
        await job.ask(f"server-{rank}", said)
    await asyncio.wait_for(job.master.parts.checkpoints.uploading._task, 30)


async def all_trained(job, tmp_path):
    """Of two checkpoints the first, which began with training, is in storage; the second has all of it."""
    give_private_disks(job, tmp_path)
    await job.train(shards=4)
    await save(job)
    await copy(job)
    job.tick()
    await save(job)


def stored(tmp_path):
    return dataclasses.replace(RULES, url=f"file://{tmp_path}/copy", upload_every_s=600.0)


def story(job, kind):
    lines = (job.folder.parent / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_first_checkpoint_is_uploaded_by_servers_and_published_by_the_master(tmp_path):
    async def test(job):
        give_private_disks(job, tmp_path)
        await job.train()
        job.tick()
        await save(job)
        assert job.outcomes == [(1, "complete")] and job.master.parts.checkpoints.saving.unsure
        assert not checkpoint_io.numbers(open_store(f"file://{tmp_path}/copy")), "half a copy is never seen"
        await copy(job)
        found = checkpoint_io.latest(f"file://{tmp_path}/copy").manifest
        assert found.number == 1 and not found.apart and len(found.files) == 2
        assert story(job, "uploaded")[0]["files"] == 2 and not job.master.parts.checkpoints.saving.unsure
        assert job.master.status().checkpoints.uploaded == 1

    with_job(test, tmp_path, rules=stored(tmp_path))


def test_end_of_data_is_released_only_once_the_checkpoint_is_in_storage(tmp_path):
    async def test(job):
        await all_trained(job, tmp_path)
        book, rounds = job.master.record.book, job.master.parts.checkpoints
        assert book.waits_to_end
        job.tick(1)
        assert rounds.saving.round is None, "it has only to be copied"
        await copy(job)
        assert not book.waits_to_end
        assert checkpoint_io.latest(f"file://{tmp_path}/copy").manifest.number == 2

    with_job(test, tmp_path, rules=stored(tmp_path))


def test_end_of_data_does_not_wait_for_unreachable_storage(tmp_path):
    async def test(job):
        await all_trained(job, tmp_path)
        await copy(job, 0, break_off="AccessDenied")
        assert not job.master.record.book.waits_to_end
        assert "could not be copied" in job.told()[-1]["why"] and job.told()[-1]["outcome"] == "skipped"
        assert "AccessDenied" in job.master.status().checkpoints.trouble

    with_job(test, tmp_path, rules=stored(tmp_path))


def test_server_lost_during_an_upload_fails_it_and_names_the_file(tmp_path):
    async def test(job):
        give_private_disks(job, tmp_path)
        await job.train()
        job.tick()
        await save(job)
        await asyncio.wait_for(job.ask("server-0", CopyRequest()), 5)
        (job.servers[1].disk / "server-1" / "server-1.0-000001.run1.seg").unlink()
        await copy(job)
        assert (
            "server-1/server-1.0-000001.run1.seg: no server has these files any more"
            in story(job, "uploaded")[0]["why"]
        )

    with_job(test, tmp_path, rules=stored(tmp_path))


def successor(job):
    """The checkpoints of a master that takes over."""
    with contextlib.closing(EventLog(job.folder.parent / "events.jsonl")) as log:
        made = build_service(
            job.master.record, log, job.clock, term=2, saving=CheckpointStore(RULES, job.folder, stores.CLAIM, term=2)
        )
        made.take_over()
        return made.parts.checkpoints


def test_successor_master_reuses_no_checkpoint_number_and_waits_for_servers(tmp_path):
    async def test(job):
        give_private_disks(job, tmp_path)
        await job.train()
        job.tick()
        await save(job)
        job.tick(31)
        with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as log:
            successor = build_service(
                job.master.record,
                log,
                job.clock,
                term=2,
                saving=CheckpointStore(RULES, job.folder, stores.CLAIM, term=2),
            )
            successor.take_over()
            assert successor.parts.checkpoints.saving.last.number == 1, "though it sees none of its files"
            job.master = successor
            job.tick()
            assert successor.parts.checkpoints.saving.round is None, "no server has told its numbers"
            asking = [asyncio.create_task(speak(job, 0, number=5))]
            await asyncio.sleep(0)
            job.tick()
            assert successor.parts.checkpoints.saving.round is None
            asking.append(asyncio.create_task(speak(job, 1)))
            await asyncio.sleep(0)
            job.tick()
            orders = await asyncio.gather(*asking)
            assert [(order.number, order.base, order.needed) for order in orders] == [
                (6, 1, (f"server-{rank}.0-000001.run1.seg",)) for rank in (0, 1)
            ]

    with_job(test, tmp_path)


def test_master_replaced_before_the_first_checkpoint_skips_numbers_at_the_url(tmp_path):
    stores.publish(tmp_path / "copy", 9, stores.save(stores.store(), tmp_path / "copy", 9))

    async def test(job):
        saving = CheckpointStore(stored(tmp_path), job.folder, stores.CLAIM, term=2)
        with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as log:
            build_service(job.master.record, log, job.clock, term=2, saving=saving).take_over()
        assert saving.begin(job.master.record, {}, hurry=False, at=0.0).number == 10

    with_job(test, tmp_path)


def test_successor_master_withdraws_checkpoints_begun_before_a_rollback(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        place, record = job.master.parts.checkpoints.saving.place, job.master.record
        last = job.master.parts.checkpoints.saving.last
        progress = msgspec.structs.replace(last.progress, era=record.book.era)
        late = msgspec.structs.replace(last, number=2, progress=progress)
        place.write(late.name, encode(late))
        assert successor(job).saving.last.number == 2, "it was complete, and nobody could note it any more"
        later = msgspec.structs.replace(progress, era=record.book.era + 1)
        place.write(late.name, encode(msgspec.structs.replace(late, progress=later)))
        record.state.safety.saved = 1
        assert successor(job).saving.last.number == 1 and checkpoint_io.numbers(place) == [1]

    with_job(test, tmp_path)


@pytest.mark.parametrize(
    ("rules", "nodes", "said"),
    [
        ({}, {}, ""),
        ({}, {"server-0": "a", "server-1": "a"}, "the job is lost"),
        ({}, {"server-0": "a", "server-1": "b"}, "from another server's copies"),
        ({"mirror": True}, {"server-0": "a", "server-1": "b"}, "from another server's copies"),
        ({"mirror": True}, {"server-0": "a", "server-1": "a"}, "all on one machine"),
        ({"url": "s3://b"}, {"server-0": "a"}, "from s3://b, losing at most the last 600 s"),
    ],
)
def test_cost_of_losing_a_host_is_described(rules, nodes, said):
    told = cost_of_a_host(CheckpointRules(every_s=1.0, **rules), nodes, 2)
    assert said in told if said else told == ""


def test_single_server_has_no_copies_on_another():
    told = cost_of_a_host(CheckpointRules(every_s=1.0, mirror=True), {"server-0": "a"}, 1)
    assert "the job is lost" in told and "machine, with" not in told


def test_bsp_job_is_warned_that_pods_lose_their_disks():
    rules, nodes = CheckpointRules(every_s=1.0), {"server-0": "a", "server-1": "b"}
    assert "as a pod does" in cost_of_a_host(rules, nodes, 2, in_step=True)
    assert "pod" not in cost_of_a_host(dataclasses.replace(rules, url="s3://b"), nodes, 2, in_step=True)


def test_event_log_names_the_disks_once_all_servers_reported(tmp_path):
    async def test(job):
        give_private_disks(job, tmp_path)
        await job.train()
        job.tick()
        await save(job)
        job.tick()
        assert [event["nodes"] for event in story(job, "disks")] == [{"server-0": "n0", "server-1": "n1"}]
        assert "another server's copies" in story(job, "disks")[0]["why"]
        assert not job.master.status().checkpoints.trouble

    with_job(test, tmp_path)


@pytest.mark.parametrize("url", [False, True])
def test_servers_on_separate_machines_mirror_by_default(tmp_path, url):
    async def test(job):
        give_private_disks(job, tmp_path)
        await job.train()
        asking = [asyncio.create_task(speak(job, rank)) for rank in (0, 1)]
        await asyncio.sleep(0)
        job.tick()
        orders = await asyncio.gather(*asking)
        both = [("server-1", "host:1", "n1"), ("server-0", "host:0", "n0")]
        assert [order.buddy for order in orders] == ([None, None] if url else both)

    with_job(test, tmp_path, rules=stored(tmp_path) if url else RULES)
