"""Peer shuffle: scripted cases, and no lost batch for any order of offers, deliveries and losses."""

import random
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from springtide.data.peer_shuffle import (
    AnnounceReady,
    PeerShuffle,
    QueueBounds,
    ReportTrained,
    ReturnBatch,
    SendBatch,
    bounds_for,
)

TWO = QueueBounds(lower=1, upper=2)


def shuffle(strategy="advanced", bounds=TWO, seed=0):
    return PeerShuffle(strategy, bounds, random.Random(seed).randrange)


def test_without_peers_all_batches_are_trained_locally_in_order():
    one = shuffle()
    actions = [one.offer(key, 0.0) for key in range(4)]
    assert actions == [[], [AnnounceReady(False)], [], []]
    assert [one.take(0.0)[0] for _ in range(5)] == [0, 1, 2, 3, None]


def test_expected_batch_wait_is_known_and_zero_if_peers_take_it_at_once():
    one = shuffle(bounds=QueueBounds(lower=4, upper=9))
    assert one.wait_s(0.0) == 0.0
    for key in range(4):
        one.offer(key, 0.0)
    for at in (0.0, 0.5, 1.0):
        one.take(at)
    assert one.wait_s(1.0) == pytest.approx(0.5)
    assert one.wait_s(60.0) == 0.0, "a loop that hangs: what waits goes to peers"


def test_overflow_goes_only_to_ready_peers():
    one = shuffle()
    one.on_ready("a", False, 0.0)
    for key in range(3):
        one.offer(key, 0.0)
    assert list(one.queue) == [0, 1, 2] and one.room < 0
    assert one.on_ready("b", True, 0.0) == [SendBatch("b", 2)]
    assert list(one.queue) == [0, 1] and one.room == 1


def test_peer_gets_at_most_a_full_queue_before_it_answers():
    one = shuffle()
    one.on_ready("a", True, 0.0)
    sent = [action for key in range(6) for action in one.offer(key, 0.0) if isinstance(action, SendBatch)]
    assert sent == [SendBatch("a", 2), SendBatch("a", 3)] and one.room < 0
    assert one.done("a", 2, 1.0) == [SendBatch("a", 5)]


def test_worker_is_ready_again_only_below_the_lower_bound():
    one = shuffle(bounds=QueueBounds(lower=1, upper=3))
    told = [one.offer(key, 0.0) for key in range(3)]
    assert told[-1] == [AnnounceReady(False)]
    assert one.take(0.0) == (0, []) and one.take(0.0) == (1, [AnnounceReady(True)])


def test_strategy_none_sends_no_batch_or_message():
    one = shuffle("none")
    one.on_ready("a", True, 0.0)
    assert [one.offer(key, 0.0) for key in range(5)] == [[]] * 5


def test_strategy_basic_sends_evenly_for_any_peer_reports():
    one = shuffle("basic")
    for peer in "abc":
        one.on_ready(peer, False, 0.0)
    for key in range(4000):
        one.offer(key, 0.0)
    here = [len(one.queue), *(len(other.away) for other in one.peers.values())]
    assert all(900 < count < 1100 for count in here)


def test_received_batch_is_never_forwarded():
    one = shuffle()
    for key in range(5):
        one.on_batch("a", key, 0.0)
    assert one.on_ready("b", True, 0.0) == [] and one.tick(100.0) == []
    assert len(one.queue) == 5


def test_queue_of_a_stalled_loop_is_sent_to_peers():
    one = shuffle()
    one.on_ready("a", True, 0.0)
    one.offer(0, 0.0)
    one.on_batch("a", 7, 0.0)
    assert one.tick(1.0) == []
    assert one.tick(2.5) == [SendBatch("a", 0)]
    assert one.take(3.0) == (7, [AnnounceReady(True)])


def test_stalled_worker_is_not_ready():
    one = shuffle(bounds=QueueBounds(lower=3, upper=6))
    one.on_batch("a", 7, 0.0)
    assert one.tick(2.5) == [AnnounceReady(False)]


def test_batch_kept_too_long_by_a_peer_returns_and_the_peer_gets_no_more():
    one = shuffle()
    one.on_ready("a", True, 0.0)
    for key in range(3):
        one.offer(key, 0.0)
    one.take(0.0)
    one.take(0.0)
    one.tick(10.5)
    assert list(one.queue) == [2] and one.peers["a"].slow and one.came_home == 1
    one.done("a", 2, 11.0)
    assert not one.queue and not one.peers["a"].slow


def test_worker_that_was_suspended_blames_no_peer():
    one = shuffle()
    one.on_ready("a", True, 0.0)
    for key in range(3):
        one.offer(key, 0.0)
    one.forgive(60.0)
    assert one.tick(60.0) == [] and list(one.queue) == [0, 1] and list(one.peers["a"].away) == [2]


def test_queue_bounds_follow_the_step_time():
    assert bounds_for(0.0) == QueueBounds(lower=2, upper=4)
    assert bounds_for(0.05) == QueueBounds(lower=10, upper=20)
    assert bounds_for(3.0) == QueueBounds(lower=2, upper=4) and bounds_for(1e-6).upper == 256
    one = shuffle(bounds=None)
    for key in range(30):
        one.offer(key, 0.0)
    for step in range(20):
        one.take(0.1 * step)
    assert one.bounds.upper == 10


class Workers(RuleBasedStateMachine):
    """Workers that exchange messages, possibly late but in order."""

    @initialize(count=st.integers(1, 4), strategy=st.sampled_from(["basic", "advanced"]), seed=st.integers(0, 99))
    def begin(self, count, strategy, seed):
        self.at, self.next, self.chance = 0.0, 0, random.Random(seed)
        self.units = {name: PeerShuffle(strategy, TWO, self.chance.randrange) for name in "abcd"[:count]}
        self.hand = {name: [] for name in self.units}
        self.words = {(one, two): deque() for one in self.units for two in self.units if one != two}
        self.owner, self.open, self.told = {}, {name: set() for name in self.units}, dict.fromkeys(self.units, True)
        for one, two in self.words:
            self.units[one].on_ready(two, True, self.at)

    def act(self, name, actions):
        for action in actions:
            match action:
                case SendBatch(peer, key):
                    assert self.owner[key] == name, "a batch that was sent here was sent on"
                    assert key not in self.units[name].owners, "it is queued or in hand here, too"
                    assert sum(key in other.away for other in self.units[name].peers.values()) == 1
                    assert self.units[name].strategy == "basic" or self.units[name].peers[peer].ready
                    self.words[name, peer].append(("on_batch", key))
                case ReportTrained(peer, key):
                    self.say(name, peer, "done", key)
                case ReturnBatch(peer, key):
                    self.say(name, peer, "given_back", key)
                case AnnounceReady(ready):
                    assert ready != self.told[name]
                    self.told[name] = ready
                    for other in self.units:
                        if other != name:
                            self.words[name, other].append(("on_ready", ready))

    def say(self, name, peer, word, key):
        if peer in self.units:
            self.words[name, peer].append((word, key))

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.units)))

    @rule(data=st.data(), count=st.integers(1, 5))
    def offer(self, data, count):
        name = self.pick(data)
        for _ in range(count):
            self.owner[self.next] = name
            self.open[name].add(self.next)
            self.act(name, self.units[name].offer(self.next, self.at))
            self.next += 1

    @rule(data=st.data())
    def take(self, data):
        name = self.pick(data)
        key, actions = self.units[name].take(self.at)
        if key is not None:
            self.hand[name].append(key)
        self.act(name, actions)

    @rule(data=st.data(), drop=st.booleans())
    def through(self, data, drop):
        name = self.pick(data)
        if self.hand[name]:
            key = self.hand[name].pop(0)
            drop = drop and self.owner[key] != name
            if not drop:
                self.open[name].discard(key)
            self.act(name, (self.units[name].drop if drop else self.units[name].trained)(key, self.at))

    @rule(data=st.data(), count=st.integers(1, 8))
    def deliver(self, data, count):
        for _ in range(count):
            if ways := sorted(way for way, words in self.words.items() if words):
                self.hear(*data.draw(st.sampled_from(ways)))

    def hear(self, one, two):
        word, what = self.words[one, two].popleft()
        if word == "done":
            self.open[two].discard(what)
        self.act(two, getattr(self.units[two], word)(one, what, self.at))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 11.0]))
    def time_passes(self, seconds):
        self.at += seconds
        for name, unit in self.units.items():
            self.act(name, unit.tick(self.at))

    @rule(data=st.data())
    def silent(self, data):
        one, two = self.pick(data), self.pick(data)
        if one != two:
            self.act(one, self.units[one].silent(two, self.at))

    @rule(data=st.data())
    def lose(self, data):
        if len(self.units) > 1:
            gone = self.pick(data)
            del self.units[gone], self.hand[gone], self.open[gone]
            self.words = {way: words for way, words in self.words.items() if gone not in way}
            for name, unit in self.units.items():
                self.act(name, unit.lost(gone, self.at))

    @rule(data=st.data())
    def drain(self, data):
        name = self.pick(data)
        self.act(name, self.units[name].drain(self.at))
        assert not any(self.units[name].owners[key] != {""} for key in self.units[name].queue)

    @invariant()
    def no_batch_of_a_living_worker_is_lost(self):
        for name, unit in getattr(self, "units", {}).items():
            away = {key for other in unit.peers.values() for key in other.away}
            here = {key for key, owners in unit.owners.items() if "" in owners}
            assert self.open[name] <= away | here
            assert len(set(unit.queue)) == len(unit.queue) and set(unit.queue) <= unit.owners.keys()
            assert unit.owners.keys() <= set(unit.queue) | set(self.hand[name])

    def teardown(self):
        for _ in range(200 + 4 * getattr(self, "next", 0)):
            if not any(self.open.values()) if hasattr(self, "open") else True:
                return
            self.at += 0.1
            for way in sorted(self.words):
                while self.words[way]:
                    self.hear(*way)
            for name, unit in self.units.items():
                self.act(name, unit.tick(self.at))
                key, actions = unit.take(self.at)
                self.act(name, actions)
                for each in [*self.hand[name], *([] if key is None else [key])]:
                    self.open[name].discard(each)
                    self.act(name, unit.trained(each, self.at))
                self.hand[name].clear()
        raise AssertionError(f"never trained: {self.open}")


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
