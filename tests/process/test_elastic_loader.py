"""ElasticLoader with real data workers: kills, resizes and slow workers; each sample comes once, in order."""

import contextlib
import json
import os
import pathlib
import random
import signal

import psutil
import pytest
import torch
from torch.utils import data

from springtide import errors
from springtide.data import ElasticLoader
from springtide.dataworker.processes import local_processes
from tests.process import forked_command, forks
from tests.waiting import until

pytestmark = pytest.mark.process

SAMPLES, BATCH = 600, 10


class Ids(data.Dataset):
    """Samples that are their numbers, with random numbers beside them; some misbehave at data workers."""

    def __init__(self, stuck=None, poison=(), deadly=(), marked=False):
        self.stuck, self.poison, self.deadly, self.marked, self.mark = stuck, poison, deadly, marked, None

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if (
            self.marked
            and local_processes.NUMBER is not None
            and not data.get_worker_info().id == self.mark == local_processes.NUMBER
        ):
            raise AssertionError(f"{local_processes.NUMBER} was not begun as a worker of a DataLoader: {self.mark}")
        if self.stuck is not None and local_processes.NUMBER == 0:
            until(self.stuck.exists)
        if index in self.poison:
            raise ValueError(f"{index} is poison")
        if index in self.deadly and local_processes.NUMBER is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return index, torch.rand(2), torch.zeros(2000)


def mark(number):
    """A worker_init_fn as scripts have them that open something in each worker."""
    data.get_worker_info().dataset.mark = number


def as_lists(batches):
    return [(batch[0].tolist(), batch[1].tolist()) for batch in batches]


def epoch(number, seed):
    """Batches of an epoch without data workers, which data workers must reproduce."""
    alone = ElasticLoader(Ids(), batch_size=BATCH, shuffle=True, seed=seed, num_workers=0)
    alone.set_epoch(number)
    return as_lists(alone)


def with_events(loader, events):
    """All batches of a pass; before the k-th, events[k] happens."""
    had = []
    for step, batch in enumerate(loader):
        had.append(batch)
        if step in events:
            events[step]()
    return as_lists(had)


def test_resized_and_killed_loader_workers_lose_and_repeat_nothing(seed):
    draw = random.Random(seed)
    with ElasticLoader(
        Ids(marked=True), batch_size=BATCH, shuffle=True, seed=seed, num_workers=1, worker_init_fn=mark
    ) as loader:

        def resize(workers):
            loader.resize(workers)
            until(lambda: loader.workers == workers)

        def kill(some):
            for pid in some:
                with contextlib.suppress(ProcessLookupError):  # one that was killed before, and is not replaced yet
                    os.kill(pid, signal.SIGKILL)

        first = {0: lambda: resize(1), 10: lambda: resize(6), 40: lambda: resize(2)}
        assert with_events(loader, first) == epoch(0, seed)

        resize(4)
        at_random = {step: lambda: kill(draw.sample(loader.pids, 1)) for step in draw.sample(range(1, 50), 4)}
        assert with_events(loader, at_random) == epoch(1, seed)

        until(lambda: loader.workers == 4)
        all_at_once = {20: lambda: kill(loader.pids), 40: lambda: kill([loader._pool._running.forker.pid])}
        assert with_events(loader, all_at_once) == epoch(2, seed)
        until(lambda: loader.workers == 4)

        def rest():  # a slow trainer: the room fills, all but the place of the batch in hand, and stays so
            until(lambda: loader._pool.state.queued == loader._pool.state.room - 1)
            full.append(loader._pool.state)

        full = []
        assert with_events(loader, {step: rest for step in (5, 20, 40)}) == epoch(3, seed)
        assert all(state.queued < state.room <= 8 for state in full)
    assert loader.pids == [] and loader.workers == 0


def test_slow_loader_worker_is_replaced_and_poison_skipped_and_listed(tmp_path, seed):
    order = [ids for ids, _ in epoch(0, seed)]
    poison, deadly = {order[9][3], order[30][0]}, order[20][5]
    dataset = Ids(stuck=tmp_path / "go-on", poison=poison, deadly={deadly})
    with ElasticLoader(
        dataset, batch_size=BATCH, shuffle=True, seed=seed, num_workers=3, on_error="skip", prefetch_factor=4
    ) as loader:
        passing = iter(loader)
        had = [next(passing)[0].tolist()]
        until(lambda: loader.workers == 3)
        had += [batch[0].tolist() for batch in passing]
        (tmp_path / "go-on").touch()
    expected = [[index for index in ids if index not in poison] for ids in order if deadly not in ids]
    assert had == expected
    skipped = {one.index: one.why for one in loader.skipped}
    assert set(skipped) == {*poison, *order[20]}
    assert all(skipped[index].startswith(f"ValueError: {index} is poison (test_elastic_") for index in poison)
    assert "data workers die" in skipped[deadly]


def test_poison_sample_fails_the_loop_with_its_index_from_any_worker():
    with ElasticLoader(Ids(poison={333}), batch_size=BATCH, num_workers=1) as loader:
        passing = iter(loader)
        next(passing)
        until(lambda: loader.workers == 1)
        with pytest.raises(
            errors.UnreadableSample, match=r"ValueError: 333 is poison \(test_elastic_loader.py:\d+\)"
        ) as said:
            list(passing)
        assert said.value.indices == (333,)
        assert loader.state_dict()["done"] == 330


SCRIPT = """
import json, os, sys, threading
from tests.process.test_elastic_loader import BATCH, Ids, until
from springtide.data import ElasticLoader
loader = ElasticLoader(Ids(), batch_size=BATCH, shuffle=True, seed=3, num_workers=2)
for step, batch in enumerate(loader):
    if step == 0:
        until(lambda: loader.workers == 2)
        print(json.dumps(loader.pids), loader._pool._running.folder, flush=True)
    print(json.dumps([batch[0].tolist(), loader.state_dict()]), flush=True)
    if step == 25:
        threading.Event().wait()
"""


def test_killed_trainer_resumes_elsewhere_and_leaves_nothing_behind(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(forks.ROOT)}
    trainer = forked_command.ForkedCommand(["python", str(script)], tmp_path, environment)
    with trainer.stderr, trainer.stdout as said:
        pids, folder = said.readline().rsplit(" ", 1)
        children = [psutil.Process(pid) for pid in json.loads(pids)]
        children += [psutil.Process(trainer.pid).children()[0]]
        lines = [json.loads(said.readline()) for _ in range(26)]
        trainer.kill()
        trainer.wait()
    had = [index for ids, _ in lines for index in ids]
    with ElasticLoader(Ids(), batch_size=15, shuffle=True, num_workers=1) as loader:
        loader.load_state_dict(lines[-1][1])
        passing = iter(loader)
        had += next(passing)[0].tolist()
        until(lambda: loader.workers == 1)
        for batch in passing:
            had += batch[0].tolist()
    assert sorted(had) == list(range(SAMPLES))
    assert not psutil.wait_procs(children, timeout=120)[1]
    assert not pathlib.Path(folder.strip()).exists()
