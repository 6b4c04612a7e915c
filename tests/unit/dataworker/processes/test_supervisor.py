"""A crew's shell: what the roster decides is done to workers and to the feed, and nothing is left at the end."""

import queue
import threading
from types import SimpleNamespace

from springtide import errors
from springtide.dataworker.processes.supervisor import WorkerSupervisor, described


class FakeFeed:
    def __init__(self):
        self.said = queue.SimpleQueue()
        self.made = 0

    def attach(self, worker, address):
        self.said.put(("attach", worker, address))

    def detach(self, worker):
        self.said.put(("detach", worker))

    @property
    def state(self):
        return SimpleNamespace(made=self.made)

    def next(self):
        return self.said.get(timeout=60)


class FakeWorker:
    def __init__(self, number, stillborn):
        self.number, self.stillborn = number, stillborn
        self.drained = False
        self.over = threading.Event()
        self.status = 0

    def ready(self, timeout_s):
        if self.stillborn:
            self.die(1)
            raise errors.JobFailed("No module named 'mine'")
        return f"host:{self.number}"

    def wait(self):
        self.over.wait()
        return self.status, ""

    def drain(self):
        self.drained = True
        self.die(0)

    def kill(self):
        self.die(-9)

    def die(self, status):
        if not self.over.is_set():
            self.status = status
            self.over.set()


def crew_of(feed, *, stillborn=False):
    workers = {}

    def start(number):
        workers[number] = FakeWorker(number, stillborn)
        return workers[number]

    return WorkerSupervisor(feed, start), workers


def test_workers_are_attached_when_they_serve_and_detached_when_they_go():
    feed = FakeFeed()
    crew, workers = crew_of(feed)
    crew.resize(1)
    assert feed.next() == ("attach", "data-worker-0", "host:0")
    crew.resize(2)
    assert feed.next() == ("attach", "data-worker-1", "host:1")
    crew.resize(1)
    assert feed.next() == ("detach", "data-worker-1") == feed.next()
    assert workers[1].drained and not workers[0].over.is_set()
    crew.close()
    assert workers[0].status == -9


def test_one_that_dies_is_replaced_and_told_of(caplog):
    feed = FakeFeed()
    crew, workers = crew_of(feed)
    crew.resize(1)
    feed.next()
    feed.made = 3
    workers[0].die(-11)
    assert feed.next() == ("detach", "data-worker-0")
    assert feed.next() == ("attach", "data-worker-1", "host:1")
    crew.close()
    assert crew.deaths == 1
    assert "data worker 0 ended (killed by SIGSEGV); another takes its place" in caplog.text


def test_workers_that_cannot_begin_are_given_up(caplog):
    feed = FakeFeed()
    crew, workers = crew_of(feed, stillborn=True)
    crew.resize(1)
    assert [feed.next() for _ in range(2)] == [("detach", f"data-worker-{number}") for number in range(2)]
    crew.close()
    assert len(workers) == 2 and not crew.failed.deadly
    assert "No module named 'mine'" in crew.failed.why


def test_closing_twice_does_no_harm():
    crew, _ = crew_of(FakeFeed())
    crew.close()
    crew.close()


def test_an_exit_is_told_in_words():
    assert described(-9) == "killed by SIGKILL (out of memory?)"
    assert described(-200) == "killed by signal 200"
    assert described(3) == "exit status 3"
