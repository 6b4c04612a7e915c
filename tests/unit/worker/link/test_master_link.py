"""The link of a single script, and how a worker finds its master."""

from types import SimpleNamespace

import pytest

from springtide import config, errors
from springtide.domain.core.roles import Placement
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.spec.job_spec import JobSpec
from springtide.rpc.messages import messages
from springtide.rpc.messages.messages import DataEnd
from springtide.rpc.messages.types import MemberReport, ServerAddresses
from springtide.telemetry.host.usage import OwnUsage
from springtide.worker.link import master_link, subscriptions


def worker_of(master):
    return master_link.MasterLink(master, master_link.WorkerIdentity(1), OwnUsage(config.Settings()))


def test_single_worker_link_gets_all_shards_then_the_end():
    alone = master_link.local_link(config.Settings(seed=7, slots=64))
    welcome = alone.join()
    assert (welcome.rank, welcome.spec.workers, welcome.servers, welcome.spec.seed, welcome.spec.slots) == (
        0,
        1,
        (),
        7,
        64,
    )
    card = DatasetCard(samples=100, batch_size=10, shard_batches=4, epochs=2)
    counts = []
    alone.leases.tracker.begin_pass(card)
    while not isinstance(alone.leases.lease(card, 1), DataEnd):
        lease, claim = alone.leases.tracker.claim(100)
        counts.append(lease.end - lease.first)
        alone.leases.tracker.acknowledge([claim])
    assert counts == [40, 40, 20] * 2


def test_local_link_shares_values_and_finishes_without_a_master():
    alone = master_link.local_link(config.Settings())
    alone.shared.share("address", b"here")
    assert alone.shared.lookup("address") == b"here"
    with pytest.raises(errors.UnknownName, match="Did you mean 'address'"):
        alone.shared.lookup("adress")
    alone.reports.report(MemberReport(samples=5))
    assert alone.reports.latest.samples == 5
    alone.finish()


def test_worker_that_only_ever_got_the_end_counts_as_unneeded():
    answers = [messages.WaitReply(), messages.DataEnd(), messages.LeaseReply(()), messages.DataEnd()]
    master = SimpleNamespace(ask=lambda _: answers.pop(0))
    worker = worker_of(master)
    card = DatasetCard(samples=100, batch_size=10)
    told = []
    while answers:
        worker.leases.lease(card, 1)
        told.append(worker.leases.unneeded)
    assert told == [False, True, False, False]


def test_secret_is_read_from_its_file(tmp_path):
    (tmp_path / "secret").write_text("00ff\n")
    assert config.job_secret(config.Settings(secret_file=str(tmp_path / "secret"))) == b"\x00\xff"
    assert config.job_secret(config.Settings(secret="0a")) == b"\n"
    with pytest.raises(errors.BadInput, match=r"cannot read the job's secret from .*nowhere"):
        config.job_secret(config.Settings(secret_file=str(tmp_path / "nowhere")))
    with pytest.raises(errors.BadInput, match="is not hex"):
        config.job_secret(config.Settings(secret="xyz"))


def test_server_addresses_and_incarnations_are_updated_together():
    welcome = messages.WorkerWelcome(
        spec=JobSpec(name="job"),
        rank=0,
        servers=("host:1", "host:2"),
        placement=Placement(epoch=1, servers=2, server_of_slot=(0,) * 64),
        lives=(0, 1),
    )
    now = subscriptions.with_current_servers(welcome, ServerAddresses(("host:9", "", "host:3"), (1, 2, 0)))
    assert (now.servers, now.lives) == (("host:9", "host:2", "host:3"), (1, 1, 0))
    assert subscriptions.with_current_servers(now, ServerAddresses(("host:1",), (0,))) == now


def test_object_states_are_sent_with_each_heartbeat_until_acknowledged():
    asked, place = [], EpochPlace(2, 2, 3)
    worker = worker_of(SimpleNamespace(ask=asked.append))
    worker.reports.keep_objects({"schedule": b"early"}, place)
    for _ in range(2):  # the master died before it could answer the first
        beat = worker._beat()
        assert (beat.objects, beat.place) == ({"schedule": b"early"}, place)
    worker.reports.keep_objects({"schedule": b"late"}, place)
    worker._on_reply(messages.HeartbeatReply())
    assert worker._beat().objects == {"schedule": b"late"}, "the answer was to the one before"
    worker._on_reply(messages.HeartbeatReply())
    assert worker._beat().objects == {}
    worker.reports.keep_objects({"schedule": b"late"}, place)
    worker.reports.begin_epoch(EpochPlace(3, 3, 3), {"schedule": b"next"})
    assert asked == [messages.EpochBegun(EpochPlace(3, 3, 3), {"schedule": b"next"})]
    assert worker._beat().objects == {}, "what was taken before is not told after it"


def test_worker_drains_when_its_pass_is_stopped_early():
    answers = [messages.DataEnd(), messages.DataEnd(stop=True)]
    master = SimpleNamespace(ask=lambda _: answers.pop(0))
    worker = worker_of(master)
    told = []
    while answers:
        worker.leases.lease(DatasetCard(samples=100, batch_size=10), 1)
        told.append(worker.draining)
    assert told == [False, True]
