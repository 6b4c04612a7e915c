"""A worker prefetches as many leases as it will need, with one request at a time."""

import threading

from springtide.domain.data.leases import Grant, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.worker.input import lease_prefetch
from springtide.worker.link.lease_tracker import LeaseTracker

CARD = DatasetCard(samples=100_000, batch_size=10, shard_batches=10)  # shards of 100 samples


class Master:
    """Grants every lease request and records its size."""

    def __init__(self, tracker):
        self.tracker, self.asked, self.shard = tracker, [], 0

    def __call__(self, card, most):
        self.asked.append(most)
        self.tracker.on_reported(self.tracker.report())
        grants = [Grant(self.shard + n, 0, self.shard + n, 0, 100) for n in range(most)]
        self.shard += most
        self.tracker.add_grants(card, grants)
        return messages.LeaseReply(tuple(grants))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_late_lease_reply_is_waited_for_and_requested_once():
    asked, answer = [], threading.Event()

    def ask(card, most):
        asked.append(card)
        answer.wait(10)
        return messages.DataEnd()

    ahead = lease_prefetch.PrefetchedLeases(ask, LeaseTracker(), patience_s=0.001)
    assert [ahead.more(CARD), ahead.more(CARD)] == [messages.WaitReply(), messages.WaitReply()]
    answer.set()
    while (got := ahead.more(CARD)) == messages.WaitReply():
        pass
    assert got == messages.DataEnd()
    assert asked == [CARD]
    ahead.close()


def test_lease_prefetch_holds_twelve_seconds_of_work_at_the_recent_pace():
    tracker, clock = LeaseTracker(), Clock()
    tracker.begin_pass(CARD)
    master = Master(tracker)
    ahead = lease_prefetch.PrefetchedLeases(master, tracker, patience_s=60, clock=clock)
    assert isinstance(ahead.more(CARD), messages.LeaseReply)
    lead = []
    for _ in range(600):  # 60 s at 100 samples a second
        clock.now += 0.1
        claimed = tracker.claim(10)
        assert claimed is not None, "the loop would have had to wait"
        tracker.acknowledge(claimed[1:])
        ahead.keep_up(CARD, 10)
        if ahead._asked:
            ahead._asked.result(60)
        lead.append(tracker.unclaimed)
    assert min(lead[50:]) >= 1100 and max(lead) <= 1400
    assert max(master.asked) <= lease_prefetch.MOST
    ahead.close()


def test_number_of_leases_is_bounded_for_tiny_shards():
    tracker, clock = LeaseTracker(), Clock()
    tracker.begin_pass(CARD)
    ahead = lease_prefetch.PrefetchedLeases(Master(tracker), tracker, patience_s=60, clock=clock)
    ahead.more(CARD)
    for _ in range(50):  # 10,000 samples a second: twelve seconds would be 1,200 leases
        clock.now += 0.1
        for _ in range(10):
            while not (claimed := tracker.claim(100)):
                ahead.more(CARD)
            tracker.acknowledge(claimed[1:])
        ahead.keep_up(CARD, 1000)
        if ahead._asked:
            ahead._asked.result(60)
        assert len(tracker) <= lease_prefetch.MOST_HELD
    ahead.close()


def test_lease_prefetch_does_not_ask_after_the_end_while_it_has_work():
    tracker, clock, asked = LeaseTracker(), Clock(), []
    tracker.begin_pass(CARD)
    tracker.add_grants(CARD, [Grant(0, 0, 0, 0, 100)])

    def ask(card, most):
        asked.append(most)
        return messages.DataEnd()

    ahead = lease_prefetch.PrefetchedLeases(ask, tracker, patience_s=60, clock=clock)
    for _ in range(10):
        tracker.claim(10)
        clock.now += 1
        ahead.keep_up(CARD, 10)
        if ahead._asked:
            ahead._asked.result(60)
    assert len(asked) == 1
    assert ahead.more(CARD) == messages.WaitReply()
    ahead.close()


def test_hurry_request_makes_prefetch_ask_for_one_more_lease():
    tracker, clock = LeaseTracker(), Clock()
    tracker.begin_pass(CARD)
    master = Master(tracker)
    ahead = lease_prefetch.PrefetchedLeases(master, tracker, patience_s=60, clock=clock)
    tracker.add_grants(CARD, [Grant(1000 + n, 0, n, 0, 100) for n in range(40)])
    hurried = []
    for second in range(6):
        clock.now = float(second)
        tracker.apply_changes((), (), hurry=second == 3)
        ahead.keep_up(CARD, 10)
        if ahead._asked is not None:
            ahead._asked.result()
            hurried.append(second)
    assert hurried and hurried[0] == 3
    assert master.asked[0] == 1
    ahead.close()


def test_end_received_while_holding_work_is_asked_for_again():
    tracker, clock, answers = LeaseTracker(), Clock(), []
    tracker.begin_pass(CARD)
    grant = Grant(0, 0, 0, 0, 20)
    tracker.add_grants(CARD, [grant])

    def ask(card, most):
        answers.append(most)
        return messages.DataEnd() if len(answers) in (1, 3) else messages.WaitReply()

    ahead = lease_prefetch.PrefetchedLeases(ask, tracker, patience_s=60, clock=clock)
    _, first = tracker.claim(10)
    tracker.hurry = True
    ahead.keep_up(CARD, 10)
    tracker.apply_changes((), [ShrinkRequest(0, 0, 10)])  # the rest goes to another worker
    tracker.acknowledge([first])
    assert not tracker.is_busy
    assert ahead.more(CARD) == messages.WaitReply(), "another worker still trains the rest"
    assert ahead.more(CARD) == messages.WaitReply()
    assert ahead.more(CARD) == messages.DataEnd()
    ahead.close()
