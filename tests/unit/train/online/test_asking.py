"""A worker's questions about a stream wait for the master by themselves, and nobody waits for them."""

import threading

from springtide.domain.samples import DatasetCard
from springtide.domain.streams import Cut, StreamCard
from springtide.train.online.asking import Asking

CARD = DatasetCard(samples=0, batch_size=8, stream=StreamCard(url="log:///x"))


class Away:
    """A link whose master is away until `back` is set."""

    def __init__(self):
        self.back, self.asked = threading.Event(), []
        self.begun = threading.Semaphore(0)

    def cut(self, cuts):
        self.asked.append(cuts)
        self.begun.release()
        self.back.wait()


def test_a_cut_that_is_not_answered_is_not_asked_again_meanwhile_and_keeps_no_process_alive():
    link = Away()
    asking = Asking(link, CARD, stream=None)
    first, second = (Cut(0, 0, 5),), (Cut(0, 0, 6),)
    asking.cut(first)
    assert link.begun.acquire(timeout=10)
    asking.cut(second)
    assert link.asked == [first]
    cutting = [one for one in threading.enumerate() if one.name.startswith("springtide-cuts")]
    assert len(cutting) == 1 and cutting[0].daemon, "a script that ends would wait for a master that is away"
    link.back.set()
    cutting[0].join()
    asking.cut(second)
    assert link.begun.acquire(timeout=10)
    assert link.asked == [first, second]
    asking.close()
    asking.cut(first)
    assert len(link.asked) == 2
