"""Stream requests of a worker wait for the master in their own thread."""

import threading

from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange, StreamCard
from springtide.rpc.messages import messages
from springtide.worker.online.stream_reader import StreamLeases

CARD = DatasetCard(samples=0, batch_size=8, stream=StreamCard(url="log:///x"))


class AbsentMasterLink:
    """A link whose master does not answer until `back` is set."""

    def __init__(self):
        self.back, self.asked = threading.Event(), []
        self.begun = threading.Semaphore(0)
        self.leases = self

    def cut(self, cuts):
        self.asked.append(cuts)
        self.begun.release()
        self.back.wait()


def test_unanswered_cut_is_not_repeated_and_its_thread_is_a_daemon():
    link = AbsentMasterLink()
    asking = StreamLeases(link, CARD, stream=None)
    first, second = (BatchCut(0, 0, 5),), (BatchCut(0, 0, 6),)
    asking.cut(first)
    assert link.begun.acquire(timeout=60)
    asking.cut(second)
    assert link.asked == [first]
    cutting = [one for one in threading.enumerate() if one.name.startswith("springtide-cuts")]
    assert len(cutting) == 1 and cutting[0].daemon, "a script that ends would wait for a master that is away"
    link.back.set()
    cutting[0].join()
    asking.cut(second)
    assert link.begun.acquire(timeout=60)
    assert link.asked == [first, second]
    asking.close()
    asking.cut(first)
    assert len(link.asked) == 2


class IdleMasterLink:
    """A link with leased partitions whose master has nothing more to lease, and its stream."""

    def __init__(self):
        self.tracker, self.is_busy = self, True
        self.asked, self.looked = threading.Semaphore(0), 0
        self.leases = self

    def lease(self, card, most, seen):
        assert (most, seen) == (1, (PartitionRange(0, 0, 9),))
        self.asked.release()
        return messages.WaitReply()

    def bounds(self, start):
        self.looked += 1
        return (PartitionRange(0, 0, 9),)


def test_stream_reader_keeps_a_request_pending_between_rare_polls():
    link = IdleMasterLink()
    asking = StreamLeases(link, CARD, stream=link, every_s=1e9)
    asking.begin()
    try:
        assert all(link.asked.acquire(timeout=60) for _ in range(4))
        assert link.looked == 1
        asking.hurry()
        while link.looked == 1:
            assert link.asked.acquire(timeout=60), "whoever is in a hurry has the stream looked at again"
    finally:
        asking.close()
