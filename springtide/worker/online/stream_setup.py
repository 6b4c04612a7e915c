"""From `springtide.stream(...)` to the batches of a loop: the stream is opened, its card made, reports and steps told.

In: worker/job.py. Out: a worker/input/batches.py `Batches`. Next: stream_batches.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from springtide import errors
from springtide.data.stream.dataset import StreamDataset
from springtide.data.stream.stream import open_stream
from springtide.domain.data.samples import DatasetCard
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input.batches import Batches
from springtide.worker.input.read_batch import ReadBatch
from springtide.worker.input.readahead import BatchReadahead
from springtide.worker.link.master_link import MasterLink
from springtide.worker.link.progress import ProgressReporter
from springtide.worker.link.step_timer import StepMeter
from springtide.worker.online import shuffling
from springtide.worker.online.bsp_batches import BspStreamFeed
from springtide.worker.online.stream_batches import StreamFeed
from springtide.worker.setup import Mode, Wired

NO_DATA_WORKERS = "a stream is read by the workers themselves: its partitions are leased to them"


IN_STEP_BATCHES = 4  # of a stretch of a bsp group: few, since the next one should be of the fullest partition then


def card_of(
    dataset: StreamDataset, batch_size: int, mode: Mode, *, epochs: int, scaling: str | None, workers: int
) -> DatasetCard:
    """What the master must know of it. A bsp group shares a batch; `workers` it has at first, weak scaling or not."""
    if epochs != 1:
        raise errors.BadInput(f"epochs={epochs}: a stream is trained once; leave epochs out")
    if mode == "bsp":
        size = batch_size * workers if scaling == "worker_batch" else batch_size
        if size < workers:
            raise errors.BadInput(f"batch_size={size} cannot be shared by {workers} workers; raise it")
        return DatasetCard(
            samples=0, batch_size=size, shuffle=False, in_step=True, shard_batches=IN_STEP_BATCHES, stream=dataset.card
        )
    if scaling == "global_batch":
        raise errors.BadInput('scaling="global_batch": batches of a stream do not depend on how many workers there are')
    return DatasetCard(samples=0, batch_size=batch_size, shuffle=False, shard_batches=1, stream=dataset.card)


def batches_of(
    dataset: StreamDataset,
    card: DatasetCard,
    to_master: MasterLink,
    wired: Wired,
    reports: ProgressReporter,
    meter: StepMeter,
    *,
    at_rest: Callable[[], None],
    parts: int = 1,
    each: int | None = None,
) -> Batches:
    """The loop's batches; `parts` of them are one of the card's. `each`: of each rank of a group, with weak scaling."""
    welcome = to_master.join()
    stream = open_stream(dataset.url)
    assert card.stream is not None
    card = replace(card, stream=replace(card.stream, id=stream.id))
    if (group := wired.step.group) is not None:
        in_step = BspStreamFeed(dataset, stream, card, to_master, lambda: group.place, each)
        return _in_step(in_step, wired, reports, meter, at_rest)
    unit = shuffling.open_unit(to_master, welcome, strategy=dataset.shuffle, queue=dataset.queue)
    feed = StreamFeed(dataset, stream, card, to_master, unit, idle=reports.step, parts=parts)
    wired.step.on_trained, wired.step.on_torn = feed.trained, feed.torn
    wired.step.age = feed.age
    reports.stream = feed.report
    to_master.before_finish(feed.close)

    def one_pass(_: int) -> Iterator[ReadBatch]:
        return feed.batches()

    return Batches(one_pass, wired.step, meter, ahead=wired.ahead, length=None, at_rest=at_rest)


def _in_step(
    feed: BspStreamFeed, wired: Wired, reports: ProgressReporter, meter: StepMeter, at_rest: Callable[[], None]
) -> Batches:
    """Those of a bsp group."""
    feed.idle = reports.step
    wired.step.on_trained, wired.step.age = feed.use.trained, lambda: feed.event_s
    reports.stream = feed.report
    feed.link.before_finish(feed.close)
    if (sharing := wired.step.sharing) is not None:
        sharing.allotting.picker = feed
        feed.wholes = lambda: sharing.allotting.wholes
        feed.ahead = lambda read: read_ahead(read, sharing, feed.place())
    return Batches(lambda _: feed.batches(), wired.step, meter, ahead=wired.ahead, length=None, at_rest=at_rest)


def read_ahead(read: Iterator[ReadBatch], sharing: CacheCoordinator, place: GroupPlace) -> Iterator[ReadBatch]:
    """One batch ahead, so that a schedule may plan it. Every rank reads all of it in any case: that costs no more."""
    sharing.restart(place)
    return iter(BatchReadahead(read, sharing.allotting.make_ready, sharing.allotting.review, pauses=True))
