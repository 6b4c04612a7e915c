"""Open a stream for `job.prepare` and create the loop's batches from it.

In: worker/job.py. Out: the `Batches` of worker/input/batches.py. Next: stream_batches.py.
"""

from collections.abc import Callable
from dataclasses import replace

from springtide import errors
from springtide.data.stream.stream import StreamDataset, open_stream
from springtide.domain.data.samples import DatasetCard
from springtide.worker.input.batches import Batches
from springtide.worker.link.master_link import MasterLink
from springtide.worker.link.progress import StepMeter
from springtide.worker.online import peers
from springtide.worker.online.bsp_batches import BspStreamFeed
from springtide.worker.online.stream_batches import StreamFeed
from springtide.worker.setup import Mode, Wired

NO_DATA_WORKERS = "a stream is read by the workers themselves: its partitions are leased to them"


# batches per lease of a bsp group; few, because each new lease chooses the partition with the most untrained records
IN_STEP_BATCHES = 4


def card_of(
    dataset: StreamDataset, batch_size: int, mode: Mode, *, epochs: int, scaling: str | None, workers: int
) -> DatasetCard:
    """Return the master's description of the stream. A bsp group shares each batch; `workers` is its initial size."""
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


def open_feed(
    dataset: StreamDataset,
    card: DatasetCard,
    to_master: MasterLink,
    idle: Callable[[], None],
    *,
    parts: int = 1,
    each: int | None = None,
) -> StreamFeed | BspStreamFeed:
    """Open the stream. `idle` is called whenever there is nothing to train. `parts` batches of the loop form one batch
    of the card."""
    stream = open_stream(dataset.url)
    assert card.stream is not None
    card = replace(card, stream=replace(card.stream, id=stream.id))
    feed: StreamFeed | BspStreamFeed
    if card.in_step:
        feed = BspStreamFeed(dataset, stream, card, to_master, each=each, idle=idle)
    else:
        unit = peers.open_unit(to_master, to_master.join(), strategy=dataset.shuffle, queue=dataset.queue)
        feed = StreamFeed(dataset, stream, card, to_master, unit, idle=idle, parts=parts)
    to_master.before_finish(feed.close)
    return feed


def batches_of(
    feed: StreamFeed | BspStreamFeed, wired: Wired, meter: StepMeter, at_rest: Callable[[], None]
) -> Batches:
    if isinstance(feed, BspStreamFeed):
        assert wired.group is not None
        feed.join_group(wired.group, wired.sharing)
    return Batches(lambda _: feed.batches(), wired.step, meter, ahead=wired.ahead, length=None, at_rest=at_rest)
