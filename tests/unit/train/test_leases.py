import threading

from springtide.domain.leases import Grant
from springtide.domain.samples import DatasetCard
from springtide.rpc import messages
from springtide.train import leases

CARD = DatasetCard(samples=10, batch_size=2)


def test_an_answer_that_is_late_is_waited_for_in_turns_and_asked_for_once():
    asked, answer = [], threading.Event()

    def lease(card):
        asked.append(card)
        answer.wait(10)
        return messages.End()

    ahead = leases.Ahead(lease, patience_s=0.001)
    assert [ahead.take(CARD), ahead.take(CARD)] == [messages.Wait(), messages.Wait()]
    answer.set()
    while (got := ahead.take(CARD)) == messages.Wait():
        pass
    assert got == messages.End()
    assert asked == [CARD]
    ahead.close()


def test_asking_ahead_asks_once_and_the_answer_waits():
    asked = threading.Semaphore(0)

    def lease(card):
        asked.release()
        return Grant(shard=len(answers), epoch=0, nth=0, first=0, end=2)

    answers = []
    ahead = leases.Ahead(lease, patience_s=5)
    ahead.ask_ahead(CARD)
    ahead.ask_ahead(CARD)
    assert asked.acquire(timeout=5)
    assert ahead.take(CARD).shard == 0
    assert not asked.acquire(blocking=False)
    ahead.close()
