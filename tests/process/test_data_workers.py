"""Real data worker processes are killed, stopped, added and removed: every sample comes once, in order."""

import contextlib
import signal

import psutil
import pytest
import torch
from torch.utils import data

from springtide.dataworker.feed.feed import BatchFeed
from tests.process import data_workers
from tests.process.data_workers import SECRET, samples, wanted
from tests.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def workers():
    with data_workers.forked_data_workers() as found:
        yield found


@pytest.fixture
def feed():
    made = BatchFeed(SECRET)
    yield made
    made.close()


class WorkerSet:
    """Data workers of one feed by name; names are never used twice."""

    def __init__(self, workers, attach, detach, rng, **options):
        self.workers, self.attach, self.detach, self.rng, self.options = workers, attach, detach, rng, options
        self.running = {}
        self.names = 0

    def resize(self, count):
        while len(self.running) < count:
            self.names += 1
            name = f"dw-{self.options.get('stage', 0)}-{self.names}"
            self.running[name] = self.workers.start(**self.options)
            self.attach(name, self.running[name].address)
        while len(self.running) > count:
            name = self.pick()
            self.detach(name)
            self.running.pop(name).signal(signal.SIGTERM)

    def pick(self):
        return sorted(self.running)[int(self.rng.integers(len(self.running)))]

    def kill(self, count=1):
        for _ in range(min(count, len(self.running))):
            self.running.pop(self.pick()).kill()


def make_locally(indices):
    return data_workers.pipeline()(indices)


def test_killed_data_workers_resized_from_one_to_six_to_two_lose_no_sample(workers, feed, rng):
    killed_at_random_and_resized(workers, feed, rng)


@pytest.mark.soak
@pytest.mark.parametrize("life", range(20))
def test_data_workers_killed_and_resized_many_times_lose_no_sample(workers, feed, rng, life):
    killed_at_random_and_resized(workers, feed, rng)


def killed_at_random_and_resized(workers, feed, rng):
    crew = WorkerSet(workers, feed.attach, feed.detach, rng, stage=0)
    crew.resize(1)
    until(lambda: feed.state.workers == 1)
    size, got = 1, []
    for number, batch in enumerate(feed.read(wanted(10**6), make_locally)):
        got.append(batch)
        if number >= 300:
            if feed.state.made > 100:
                break
            until(lambda: feed.state.workers)  # alone, the trainer is through with all before any of them is back
        if number in (60, 160):
            size = {60: 6, 160: 2}[number]
            crew.resize(size)
        if rng.random() < 0.05:
            crew.kill()
            crew.resize(size)
    assert samples(got) == list(range(4 * len(got)))


def test_trainer_continues_alone_without_data_workers_and_is_fed_again_later(workers, feed, rng):
    crew = WorkerSet(workers, feed.attach, feed.detach, rng, stage=0)
    crew.resize(3)
    until(lambda: feed.state.workers == 3)
    reading = feed.read(wanted(200), make_locally)
    got = [next(reading) for _ in range(30)]
    crew.kill(3)
    got += [next(reading) for _ in range(70)]
    until(lambda: feed.state.workers == 0)
    alone = feed.state.made
    crew.resize(2)
    until(lambda: feed.state.workers == 2)
    got += list(reading)
    assert samples(got) == list(range(800))
    assert feed.state.made > alone


def test_hanging_data_workers_batches_are_made_by_others(workers, feed, rng):
    crew = WorkerSet(workers, feed.attach, feed.detach, rng)
    crew.resize(2)
    until(lambda: feed.state.workers == 2)
    reading = feed.read(wanted(60), own=lambda _: pytest.fail("there was someone to make it"))
    got = [next(reading) for _ in range(10)]
    crew.running["dw-0-1"].signal(signal.SIGSTOP)
    got += list(reading)
    assert samples(got) == list(range(240))
    crew.kill(2)


def test_slow_trainer_uses_no_more_memory_than_its_read_ahead(workers):
    started = workers.start(floats=250_000)  # 1 MB a batch
    with contextlib.closing(BatchFeed(SECRET, room=64, most_bytes=8 << 20)) as feed:
        feed.attach("dw", started.address)
        until(lambda: feed.state.workers == 1)
        reading = feed.read(wanted(400), make_locally)
        for _ in range(10):
            next(reading)
        until(lambda: feed.state.queued == feed.state.room - 1)
        before = memory_of(started)
        got = []
        for number, batch in enumerate(reading):
            got.append(batch["samples"].clone())
            assert feed.state.queued <= 8
            if number % 50 == 0:
                assert memory_of(started) - before < 40 << 20, "of 400 MB that come"
    assert torch.equal(torch.cat(got), torch.arange(40, 1600))
    started.kill()


def memory_of(started):
    """Of the data worker and this process."""
    return psutil.Process(started.pid).memory_info().rss + psutil.Process().memory_info().rss


def test_killed_trainer_leaves_its_data_worker_to_others(workers, feed):
    serving = workers.start()
    trainer = workers.start(feeds=[serving.address], batches=10**6)
    feed.attach("dw", serving.address)
    until(lambda: feed.state.workers == 1)
    reading = feed.read(wanted(50), make_locally)
    got = [next(reading) for _ in range(10)]
    trainer.kill()
    got += list(reading)
    assert samples(got) == list(range(200))
    feed.detach("dw")
    serving.signal(signal.SIGTERM)  # it can only end once it knows that the other trainer is gone
    assert workers.exit_code(serving) == 0


def test_two_stages_survive_killed_and_added_data_workers(workers, feed, rng):
    first = WorkerSet(workers, lambda *_: None, lambda *_: None, rng, stage=0)
    first.resize(2)
    last = WorkerSet(
        workers,
        feed.attach,
        feed.detach,
        rng,
        stage=1,
        before=[started.address for started in first.running.values()],
    )
    last.resize(2)
    until(lambda: feed.state.workers == 2)
    got = []
    for number, batch in enumerate(feed.read(wanted(150), make_locally)):
        got.append(batch)
        if number == 40:
            first.kill()  # one of the first stage is left
        if number == 70:
            last.kill()
            first.resize(3)
            last.options["before"] = [started.address for started in first.running.values()]
            last.resize(3)
        if number == 110:
            first.kill(3)  # the last stage makes all of it
    assert samples(got) == list(range(600))
    alone = [make_locally(one.indices) for one in wanted(150)]
    assert all(torch.equal(mine["hashed"], theirs["hashed"]) for mine, theirs in zip(alone, got, strict=True))


def test_random_numbers_of_a_two_stage_batch_do_not_depend_on_its_maker(workers, feed):
    first = workers.start(stage=0)
    feed.attach("both", workers.start(stage=1).address)
    until(lambda: feed.state.workers == 1)
    whole = list(feed.read(wanted(5), make_locally))
    feed.attach("split", workers.start(stage=1, before=[first.address]).address)
    feed.detach("both")
    until(lambda: feed.state.workers == 1)
    apart = list(feed.read(wanted(5), make_locally))
    for one, other in zip(whole, apart, strict=True):
        assert torch.equal(one["noise"], other["noise"]) and torch.equal(one["more"], other["more"])


def test_forking_dataloader_works_beside_a_feed(workers, feed):
    feed.attach("dw", workers.start().address)
    until(lambda: feed.state.workers == 1)
    reading = feed.read(wanted(40), make_locally)
    got = [next(reading) for _ in range(5)]
    loader = data.DataLoader(data.TensorDataset(torch.arange(64)), batch_size=8, num_workers=2)
    for (rows,), batch in zip(loader, reading, strict=False):
        assert len(rows) == 8
        got.append(batch)
    got += list(reading)
    assert sorted(samples(got))[-1] == 159


@pytest.mark.parametrize("ending", ["exit", "interrupt"])
def test_fed_script_ends_at_once_on_exit_or_interrupt(workers, ending):
    serving = workers.start()
    trainer = workers.start(feeds=[serving.address], batches=20 if ending == "exit" else 10**6)
    if ending == "interrupt":
        trainer.signal(signal.SIGINT)
    assert workers.exit_code(trainer) == (0 if ending == "exit" else -signal.SIGINT)
    serving.signal(signal.SIGTERM)
    assert workers.exit_code(serving) == 0
