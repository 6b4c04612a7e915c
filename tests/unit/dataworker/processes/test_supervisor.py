"""Supervisor of a loader's data workers: wanted number, replacement, and giving up."""

import queue
import threading
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.dataworker.processes.supervisor import (
    HOPELESS,
    WorkerAction,
    WorkerRoster,
    WorkerSupervisor,
    described,
)


def test_roster_grows_and_shrinks_to_the_wanted_size():
    roster = WorkerRoster()
    assert roster.resized(2, made=0) == [WorkerAction("start", 0), WorkerAction("start", 1)]
    assert roster.ready(0, "a:1") == [WorkerAction("attach", 0, "a:1")]
    assert roster.resized(3, made=0) == [WorkerAction("start", 2)]
    roster.ready(2, "a:2")
    assert roster.resized(1, made=5) == [WorkerAction("kill", 1), WorkerAction("drain", 2)]
    assert roster.ended(2, "ill", killed=False, made=9) == [WorkerAction("detach", 2)]
    assert roster.ended(1, "ill", killed=True, made=9) == [WorkerAction("detach", 1)]
    assert (roster.staying, roster.deaths) == ([0], 0)


def test_dead_data_worker_is_replaced():
    roster = WorkerRoster()
    roster.resized(1, made=0)
    roster.ready(0, "a:1")
    assert roster.ended(0, "ill", killed=True, made=4) == [WorkerAction("detach", 0), WorkerAction("start", 1)]
    assert roster.deaths == 1


def test_data_workers_that_die_together_are_all_replaced():
    roster = WorkerRoster()
    roster.resized(6, made=0)
    actions = [roster.ended(number, "ill", killed=True, made=0) for number in range(6)]
    assert actions == [[WorkerAction("detach", number), WorkerAction("start", number + 6)] for number in range(6)]
    assert roster.given_up is None


def test_two_failed_starts_in_a_row_give_up():
    roster = WorkerRoster()
    roster.resized(2, made=7)
    roster.ready(1, "a:1")
    assert roster.ended(0, "ill", killed=False, made=7) == [WorkerAction("detach", 0), WorkerAction("start", 2)]
    assert roster.ended(2, "No module named 'mine'", killed=False, made=7) == [
        WorkerAction("detach", 2),
        WorkerAction("kill", 1),
    ]
    assert not roster.given_up.deadly and roster.given_up.why.endswith("the last one: No module named 'mine'")
    assert roster.resized(5, made=7) == []


def test_work_that_kills_a_dozen_workers_in_a_row_gives_up():
    roster = WorkerRoster()
    roster.resized(1, made=0)
    for number in range(HOPELESS):
        assert roster.given_up is None
        roster.ended(number, "ill", killed=True, made=0)
    assert roster.given_up.deadly


def test_pool_is_not_given_up_while_batches_are_made():
    roster = WorkerRoster()
    roster.resized(1, made=0)
    for number in range(50):
        assert roster.ended(number, "ill", killed=True, made=number + 1) == [
            WorkerAction("detach", number),
            WorkerAction("start", number + 1),
        ]


events = st.lists(
    st.one_of(
        st.tuples(st.just("resize"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["ready", "end"]), st.integers(0, 12)),
        st.tuples(st.just("make"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(events)
def test_roster_keeps_the_wanted_size_and_starts_each_number_once(happening):
    roster, made, started, attached, leaving = WorkerRoster(), 0, set(), set(), set()
    for what, value in happening:
        if what == "resize":
            actions = roster.resized(value, made=made)
        elif what == "ready":
            actions = roster.ready(value, f"a:{value}")
        elif what == "end":
            actions = roster.ended(value, "ill", killed=True, made=made)
        else:
            actions, made = [], made + value
        for action in actions:
            match action:
                case WorkerAction("start", number):
                    assert number not in started
                    started.add(number)
                case WorkerAction("attach", number, _):
                    assert number in started and number not in leaving
                    attached.add(number)
                case WorkerAction("drain", number) | WorkerAction("kill", number):
                    assert (action.what == "drain") == (number in attached) or roster.given_up
                    leaving.add(number)
                case WorkerAction("detach", number):
                    attached.discard(number)
        if roster.given_up is None:
            assert len(roster.staying) == roster.wanted
        else:
            assert not roster.staying


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
        return self.status

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


def test_workers_are_attached_once_serving_and_detached_on_exit():
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


def test_dead_worker_is_replaced_and_logged(caplog):
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
    assert "data worker 0 ended (killed by SIGSEGV); starting another data worker" in caplog.text


def test_workers_that_cannot_start_are_given_up(caplog):
    feed = FakeFeed()
    crew, workers = crew_of(feed, stillborn=True)
    crew.resize(1)
    assert [feed.next() for _ in range(2)] == [("detach", f"data-worker-{number}") for number in range(2)]
    crew.close()
    assert len(workers) == 2 and not crew.failed.deadly
    assert "No module named 'mine'" in crew.failed.why


def test_closing_twice_is_harmless():
    crew, _ = crew_of(FakeFeed())
    crew.close()
    crew.close()


def test_exit_status_is_described_in_words():
    assert described(-9) == "killed by SIGKILL (out of memory?)"
    assert described(-200) == "killed by signal 200"
    assert described(3) == "exit status 3"
