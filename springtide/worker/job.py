"""`st.join()` and `job.prepare(...)`, which turn a plain PyTorch script into a worker of a job.

In: the user's model, optimizer and data set. Out: the model, optimizer and batches for the loop. Next:
worker/input/batches.py (the batches), worker/link/optimizer.py (the optimizer), worker/step/step.py (where both
meet).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from springtide import config, errors
from springtide.data import shards
from springtide.data import source as sources
from springtide.data.stream.stream import StreamDataset, open_stream
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model import cache_rules
from springtide.domain.spec import schema
from springtide.domain.spec.job_spec import unit_of
from springtide.rpc.messages.types import MemberReport
from springtide.worker import connect, error_summary, gpu_memory, setup, worker_values
from springtide.worker.bsp import batch_order
from springtide.worker.epochs import user_loops, user_objects
from springtide.worker.epochs.epochs import EpochTracker
from springtide.worker.epochs.user_objects import NAME as SCHEDULES
from springtide.worker.epochs.user_objects import Schedules
from springtide.worker.input import batch_plan, batches, feed_switch, feeds, iterable, lease_prefetch, reader
from springtide.worker.input.batch_rows import SamplePicker, SourcePicker
from springtide.worker.input.batches import Repeats
from springtide.worker.input.feeds import BatchReadahead
from springtide.worker.input.iterable import IterableRounds
from springtide.worker.link import master_link, progress
from springtide.worker.link.progress import StepMeter
from springtide.worker.online import peers
from springtide.worker.online.bsp_batches import BspStreamFeed
from springtide.worker.online.stream_batches import StreamFeed
from springtide.worker.setup import LoadGuard
from springtide.worker.split.controller import Splitting
from springtide.worker.step.step import StepListener
from springtide.worker.worker_values import OPERATIONS, WorkerValues

log = logging.getLogger(__name__)
One = torch.optim.Optimizer
Registered = TypeVar("Registered")
Optimizers = TypeVar("Optimizers", One, list[One], tuple[One, ...])
# batches per lease of a bsp group; few, because a group chooses the partition with the most untrained records only at
# each new lease
IN_STEP_BATCHES = 4
NO_DATA_WORKERS = "a stream is read by the workers themselves: its partitions are leased to them"
NOTHING_SKIPPED = "--poison skip does nothing for an IterableDataset: no worker can read past a sample that raises"
SCALINGS = ("worker_batch", "global_batch")
IN_ORDER = (
    'reduction="batch-order" trains a batch a few samples at a time, but data workers compute a part of forward() for '
    "whole batches"
)


@takes_numbers()
def join(**settings: Any) -> "Job":
    """Join the job that the environment names. Without such a job, train alone with tables in this process.

    `settings` are fields of `springtide.config.Settings` and override the environment.
    """
    return open_job(settings)


def open_job(settings: Mapping[str, Any], make: "Callable[..., Job] | None" = None) -> "Job":
    error_summary.show_briefly()
    loaded = config.load(dict(settings))
    if loaded.debug:
        error_summary.show_all()
    # without a cluster, every call starts a new job, so that a notebook can start over
    to_master = master_link.current(loaded) if loaded.master else master_link.local_link(loaded)
    return (make or Job)(loaded, to_master)


class PreparedData(NamedTuple):
    """Data set of `job.prepare`, together with its description for the master."""

    source: sources.SampleSource
    card: DatasetCard
    parts: int
    """Number of the loop's batches that form one batch of the card."""
    each: int | None
    """Number of samples per rank, in a bsp group whose batch grows with the group."""
    picker: SamplePicker


class Job:
    """This worker's membership in its job. `join` returns this object."""

    def __init__(self, settings: config.Settings, to_master: master_link.MasterLink) -> None:
        self._settings, self._link = settings, to_master
        self._welcome = to_master.join()
        self._wired: setup.Wired | None = None
        self._input: reader.BatchReader | StreamFeed | BspStreamFeed | None = None
        self.rank: int = self._welcome.rank
        """Number of this worker, from 0."""
        self.workers: int = self._welcome.spec.workers
        """Number of workers of the job."""
        self.sync: str = self._welcome.spec.sync
        """Default synchronization mode of `prepare`: "async" or "bsp"."""
        self.data: Mapping[str, str] = schema.data_of(settings.data)
        """Paths or URLs by name, from the job's spec: `job.data["train"]`."""
        self.meter = StepMeter(spent=lambda: None if self._wired is None else connect.client_time(self._wired.client))
        """Timings of each step; `job.meter.collect()` returns their sums."""
        self._reports = progress.ProgressReporter(to_master, self.meter, self._use, every_s=settings.report_every_s)
        to_master.before_finish(self._reports.send)
        self._registry = user_objects.ObjectRegistry(
            self._welcome.objects,
            to_master.reports.keep_objects,
            every_s=settings.report_every_s,
            away=self._welcome.place is not None,
        )
        to_master.before_finish(self._registry.send)
        self._tracker = EpochTracker(to_master, self._registry, self._welcome, folder=user_loops.script_folder())
        self._values = WorkerValues(to_master, self._tracker)

    @property
    def alone(self) -> bool:
        """True if there is no cluster, so that tables are in this process."""
        return not self._welcome.servers

    @property
    def leaving(self) -> bool:
        """True if this worker must stop before the end of the data, because of Ctrl-C or because the job scales down.
        The worker's loop then ends early. Leave the code after the loop to other workers: ``if not job.leaving:``
        """
        return self._link.draining

    @takes_numbers("self", "model", "optimizer", "dataset", "collate_fn")
    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        dataset: Any,
        *,
        batch_size: int | None = None,
        accumulate: int = 1,
        epochs: int = 1,
        shuffle: bool | None = None,
        seed: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool | None = None,
        num_workers: int | None = None,
        sync: str | None = None,
        scaling: str | None = None,
        max_staleness: int | None = None,
        cache: str | int | float | None = None,
        cache_staleness: int | None = None,
        allocation: str | None = None,
        reduction: str | None = None,
    ) -> tuple[nn.Module, Optimizers, batches.Batches]:
        """Serve the model's tables. Return the model, the optimizer(s) and the batches for the loop.

        model: its embeddings (nn.Embedding, nn.EmbeddingBag, TorchRec collections, st.EmbeddingBag) become served
            tables. Nothing else in the model changes. Do not wrap the model in DistributedDataParallel.
        optimizer: one torch.optim optimizer or a list of optimizers; the result has the same form.
        dataset: a Dataset, a DataLoader (its data set, batch size, shuffle, collate and readers apply), an
            IterableDataset (every worker reads all of it and trains its share), or an st.stream(...).
        batch_size: samples per batch, of a worker or of all workers (see `scaling`); None: the DataLoader's, else 512.
        accumulate: batches per step; call step() if `batches.completes_step`. In bsp mode, leave it out.
        epochs: epochs per loop over the batches. Another loop trains further epochs.
        shuffle: use a new order every epoch; None: the DataLoader's setting, else True.
        sync: "async" (each worker at its own pace) or "bsp" (all workers in step); None: the job's setting.
        scaling: "worker_batch": batch_size counts per worker (default in async; in bsp, weak scaling);
            "global_batch": batch_size counts for all workers (default in bsp). The learning rate never changes.
        max_staleness: async only. Maximum number of pushes that servers may apply between a step's read and its own
            push. 0: one worker at a time; below workers - 1: some workers wait. None: no limit; rows are read a batch
            ahead.
        cache: size of each worker's row cache: bytes (an int, "64M"), a share of all rows (a float,
            "10%"), "auto" (bsp: decided by measurement; async: off) or "off"; None: the job's setting.
        cache_staleness: async only. Updates by other workers that a cached row may lack; None: the job's setting, 10.
        allocation: bsp only. Assigns samples to workers: "anneal", "laia" (by cached rows), "random", "contiguous".
        reduction: bsp only. "batch-order" sums samples in order (docs/how-to/row-cache.md); else in rank order.
        """
        mode = self._mode(sync, accumulate)
        how: Any = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "num_workers": num_workers}
        source = sources.open_source(dataset, collate_fn=collate_fn, **how)
        given: Any = optimizer
        own: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        shared = self._shared(source, mode, cache, cache_staleness, allocation, reduction)
        card = self._card(source, mode, scaling, epochs, self._settings.seed if seed is None else seed, accumulate)
        each = source.batch_size if mode == "bsp" and scaling == "worker_batch" else None
        data = PreparedData(source, card, accumulate, each, shared.picker)
        stream = None if source.online is None else self._stream_feed(source.online, data)
        wired = self._wire(model, own, mode, max_staleness, shared, stream)
        back: Any = type(given)(wired.step.optimizers) if isinstance(given, list | tuple) else wired.step.optimizers[0]
        handed = self._batches(data, mode, wired) if stream is None else self._stream_batches(stream, wired)
        self._begin(handed, wired, own, card)
        return wired.model, back, handed

    @takes_numbers("self")
    def epochs(self, total: int) -> Iterator[int]:
        """Return the remaining epochs, which in a new job are 0 to `total` - 1: ``for epoch in job.epochs(10):``

        A restarted worker or a resumed run starts with the first unfinished epoch of the script. The worker gets the
        rest of that epoch's batches. Schedules and registered objects have the states that they had at that point.

        Epochs count over the whole job. After ``job.epochs(10)``, a loop over ``job.epochs(15)`` has five more
        epochs. If no epoch is left, the loop enters the last epoch again with a batch that trains nothing, so that
        variables of the loop are defined. A worker that was asked to leave gets no further epoch.
        """
        return self._tracker.epochs(total)

    @takes_numbers("self")
    def report(self, **metrics: float) -> None:
        """Show numbers in the job's progress. `loss` is averaged over samples; other metrics show their last value."""
        self._reports.add(metrics)

    def register(self, obj: Registered, *, name: str | None = None) -> Registered:
        """Save and restore an object of the script with the job's checkpoints. Return the same object.

        obj: a learning-rate scheduler, a random number generator (torch's, NumPy's, Python's), or any object with
            `state_dict()` and `load_state_dict()`. All registered objects together may take 256 KiB.
        name: identifies the object after a restart; default: its class name, numbered in order of registration.

        The worker saves the state between two steps, about twice a second, and at the end of the script. A restarted
        worker, or a job that resumes from a checkpoint, restores the state when the script registers the object. A new
        worker gets the state of the lowest rank.
        """
        self._registry.add(obj, name)
        return obj

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all workers, in the order of their ranks. Every worker gets the same list.

        value: numbers, text, tensors, and containers of them. The values of all workers may take 8 MiB.

        Call this method between loops over batches, equally often on every worker. A call waits for all workers that
        have begun an epoch and can still make the call:

        * A worker that is lost is waited for. The lost worker starts again in its epoch, repeats the calls of this
          epoch, and gets the same results.
        * A worker that ends, or is removed, is not waited for. A worker that must leave ends its script in the call.
        * A worker that is added takes part from the first call in an epoch that it has begun before the call was
          complete. The added worker gets the results of earlier calls.
        """
        return list(self._values.gather(value, "gather").values())

    def reduce(self, value: Any, how: str = "sum", *, weight: float | None = None) -> Any:
        """Return the sum, the mean or an extreme of all workers' values. Every worker gets the same result.

        value: a number, a tensor (reduced element by element), or a dict of them.
        how: "sum", "mean", "max" or "min". Sums are in the order of ranks.
        weight: for "mean": this worker's weight, such as its number of samples; default 1.

        See `gather` for when to call this method, and what happens when workers are lost, join or leave.
        """
        validation.choice(how, "reduction", OPERATIONS)
        if weight is not None and how != "mean":
            raise errors.BadInput(f'job.reduce(..., "{how}", weight=...): only "mean" has weights')
        given = self._values.gather((value, 1.0 if weight is None else validation.plain(weight)), "reduce")
        weights = {rank: own for rank, (_, own) in given.items()}
        if how == "mean" and not sum(weights.values()) > 0:
            raise errors.BadInput("job.reduce: no worker gave a weight above 0, so there is no mean")
        return worker_values.reduce({rank: one for rank, (one, _) in given.items()}, how, weights)

    def divide(self, dataset: Any) -> torch.utils.data.Subset[Any]:
        """Return this worker's part of a data set, for example for validation. Together, the parts of all
        workers contain every sample once.

        The workers agree on the parts as in `gather`. A restarted worker gets the same part again. The part of a worker
        that leaves afterwards is missing in sums over workers; a worker that comes afterwards gets an empty part.
        """
        ranks, count = sorted(self._values.gather(None, "divide")), len(dataset)
        if self.rank not in ranks:
            return torch.utils.data.Subset(dataset, range(0))
        part = shards.rank_part(count, rank=ranks.index(self.rank), workers=len(ranks))
        return torch.utils.data.Subset(dataset, range(count)[part])

    def flush(self) -> None:
        """Write cached rows of workers to the servers, so that a read in the middle of a pass is exact.

        In a bsp group with caches, every worker must call it at the same step, right after `optimizer.step()`. In all
        other jobs the call does nothing, because rows are always on the servers.
        """
        if self._wired is not None:
            self._wired.step.flush_now()

    def finish(self) -> None:
        """Report that the script is done. `springtide run` calls this method for scripts that it starts."""
        self._link.finish()

    def _shared(
        self,
        source: sources.SampleSource,
        mode: setup.Mode,
        cache: str | int | float | None,
        staleness: int | None,
        allocation: str | None,
        reduction: str | None,
    ) -> setup.SharingOptions:
        if mode == "async" and allocation is not None:
            raise errors.BadInput('allocation= needs sync="bsp": in async mode every worker has its own batches')
        if mode == "bsp" and staleness is not None:
            raise errors.BadInput('cache_staleness= needs sync="async": in bsp mode, cached rows lack no updates')
        rules = cache_rules.rules(cache, allocation=allocation, staleness=staleness, base=self._welcome.spec.cache)
        indexed = source.samples is not None
        picker = SourcePicker(source) if indexed else IterableRounds(source, rank=self.rank, workers=self.workers)
        return setup.SharingOptions(picker, rules, indexed, unit_of(reduction))

    def _begin(self, handed: batches.Batches, wired: setup.Wired, own: list[Any], card: DatasetCard) -> None:
        self._values.attach(handed, wired)
        if self.rank == 0:
            setup.share_hyperparameters(self._link, own, card)

    def _wire(
        self,
        model: nn.Module,
        own: list[Any],
        mode: setup.Mode,
        max_staleness: int | None,
        shared: setup.SharingOptions,
        stream: StreamFeed | BspStreamFeed | None,
    ) -> setup.Wired:
        on_step, listener = self._reports.step, StepListener() if stream is None else stream
        if isinstance(stream, BspStreamFeed):
            shared = dataclasses.replace(shared, picker=stream)
        wired = self._wired = setup.wire(
            model, own, mode, self._link, self._settings, self.meter, on_step, max_staleness, shared, listener
        )
        gpu_memory.watch(wired.model, own, wired.client.on_device)
        counts = None if mode == "bsp" else wired.step.rates  # a bsp group saves the counts with its model
        self._tracker.schedules = Schedules(wired.step.optimizers, self._registry.holds, counts)
        self._registry.add(self._tracker.schedules, SCHEDULES)
        self._link.before_finish(wired.step.retire)
        if not self.alone:
            LoadGuard(wired.model)
        return wired

    def _use(self) -> MemberReport:
        cache = None if self._wired is None else self._wired.cache_use
        if isinstance(self._input, reader.BatchReader):
            return MemberReport(cache=cache, feed=self._input.state)
        return MemberReport(cache=cache, stream=None if self._input is None else self._input.report())

    def _mode(self, sync: str | None, accumulate: int = 1) -> setup.Mode:
        if self._wired is not None:
            raise errors.BadInput(
                "job.prepare was called before: a job trains one model. Without a cluster, st.join() begins another job"
            )
        asked = validation.choice(sync or self._welcome.spec.sync, "sync mode", ("async", "bsp"))
        mode: setup.Mode = "alone" if self.alone else "bsp" if asked == "bsp" else "async"
        feeds.check(accumulate, in_step=mode == "bsp")
        if mode == "bsp" and self._welcome.certificates and not self._settings.plain_groups:
            raise errors.BadInput(
                'sync="bsp" in a job with TLS: a group sums dense gradients over torch\'s gloo, which has no TLS. '
                'Use sync="async", run the job without TLS, or allow it: st.join(plain_groups=True)'
            )
        return mode

    def _card(
        self,
        source: sources.SampleSource,
        mode: setup.Mode,
        scaling: str | None,
        epochs: int,
        seed: int,
        accumulate: int,
    ) -> DatasetCard:
        """Return the master's description of the data. A sum of accumulated batches counts as one batch."""
        epochs = validation.number(epochs, "epochs", "a whole number, 1 or more", least=1)
        self._tracker.epochs_a_loop = epochs
        seed = validation.number(seed, "seed", "a whole number that fits into 64 bits", least=-validation.LARGEST)
        batch_size = source.batch_size * accumulate
        if source.whole and (mode == "bsp" or scaling == "global_batch"):
            raise errors.BadInput(
                "DataLoader(batch_size=None) makes whole batches, which workers cannot divide among themselves: use "
                'sync="async" without scaling="global_batch", or pass batch_size and a data set of samples'
            )
        if source.online is not None:
            return stream_card(source.online, batch_size, mode, epochs=epochs, scaling=scaling, workers=self.workers)
        scaling = scaling or ("global_batch" if mode == "bsp" else "worker_batch")
        validation.choice(scaling, "scaling", SCALINGS)
        if mode == "bsp" and scaling == "worker_batch":
            batch_size *= self.workers
        if mode == "async" and scaling == "global_batch":
            if source.batch_size < self.workers:
                raise errors.BadInput(
                    f"batch_size={source.batch_size} cannot be shared by {self.workers} workers; raise it"
                )
            batch_size = source.batch_size // self.workers * accumulate
        card = DatasetCard(
            samples=source.samples or 0,
            batch_size=batch_size,
            epochs=epochs,
            shuffle=source.shuffle,
            seed=seed,
            drop_last=source.drop_last,
            in_step=mode == "bsp",
            row_groups=0 if source.groups is None else source.groups.checksum,
        )
        return card if card.in_step else dataclasses.replace(card, shard_batches=shards.batches_a_shard(card.batches))

    def _stream_feed(self, dataset: StreamDataset, data: PreparedData) -> StreamFeed | BspStreamFeed:
        link, idle = self._link, self._reports.step
        if not self.alone:
            feed_switch.refuse(link, NO_DATA_WORKERS)
        stream = open_stream(dataset.url)
        assert data.card.stream is not None
        card = dataclasses.replace(data.card, stream=dataclasses.replace(data.card.stream, id=stream.id))
        feed: StreamFeed | BspStreamFeed
        if card.in_step:
            feed = BspStreamFeed(dataset, stream, card, link, each=data.each, idle=idle)
        else:
            unit = peers.open_unit(link, link.join(), strategy=dataset.shuffle, queue=dataset.queue)
            feed = StreamFeed(dataset, stream, card, link, unit, idle=idle, parts=data.parts)
        self._input = feed
        link.before_finish(feed.close)
        return feed

    def _stream_batches(self, feed: StreamFeed | BspStreamFeed, wired: setup.Wired) -> batches.Batches:
        if isinstance(feed, BspStreamFeed):
            assert wired.group is not None
            feed.join_group(wired.group, wired.sharing)
        rest = self._registry.send_if_due
        return batches.Batches(
            lambda _: feed.batches(), wired.step, self.meter, ahead=wired.ahead, length=None, at_rest=rest
        )

    def _batches(self, data: PreparedData, mode: setup.Mode, wired: setup.Wired) -> batches.Batches:
        source, card, parts = data.source, data.card, data.parts
        in_step, cutting = mode == "bsp", wired.cutting
        group, unit = self.workers if in_step else 1, 1 if cutting is None else cutting.unit
        if cutting is not None:
            batch_order.refuse_batch(min(card.batch_size, card.samples_used), unit, group)
        if source.samples is not None:
            card = batch_plan.fit_to_group(card, group * unit)
            data = data._replace(card=card)
        read_from = self._reader(source, wired)

        def feed(passes: int) -> Iterator[batch_plan.ReadBatch]:
            handed = self._feed(data, mode, wired, read_from, passes)
            return handed if cutting is None else cutting.cut(handed)

        return batches.Batches(
            feed,
            wired.step,
            self.meter,
            ahead=wired.ahead,
            length=self._length(source, card, parts, in_step=in_step, unit=unit),
            splitting=lambda: self._splitting,
            at_rest=self._at_rest,
            tracker=self._tracker,
            repeats=Repeats(source, card, wired.model, wired.step, parts=parts, unit=unit),
            epochs=card.epochs,
        )

    def _length(
        self, source: sources.SampleSource, card: DatasetCard, parts: int, *, in_step: bool, unit: int
    ) -> batches.LoopLength | None:
        size, workers = card.batch_size // parts, self.workers
        if source.samples is not None:
            count = batch_plan.count_batches(card.samples_used, size, workers=workers, in_step=in_step, unit=unit)
            return batches.LoopLength(lambda: card.epochs * count, exact=unit == 1 and (in_step or workers == 1))
        if (given := source.length) is None:
            return None
        if in_step:  # a round has a batch for each worker; an incomplete round is left out
            return batches.LoopLength(lambda: card.epochs * (given() // workers), exact=False)
        return batches.LoopLength(lambda: card.epochs * -(-given() // workers), exact=False)

    def _feed(
        self,
        data: PreparedData,
        mode: setup.Mode,
        wired: setup.Wired,
        read_from: sources.SampleSource | reader.BatchReader,
        passes: int,
    ) -> Iterator[batch_plan.ReadBatch]:
        source, card, parts, batch_size, picker = data
        first, link, in_step = passes * card.epochs, self._link, mode == "bsp"
        if source.samples is None:
            epochs = range(first, first + card.epochs)
            if not in_step:
                return iterable.leased(source, card, epochs, link, alone=self.alone, parts=parts)
            assert isinstance(picker, IterableRounds)
            return picker.shared(wired.sharing, wired.group, epochs, steps=wired.step.count)
        tracker, direct, plain = link.leases.tracker, in_step or self.alone, wired.cutting is None
        leases = lease_prefetch.open_leases(link.leases, direct=direct)
        group, sharing = wired.group, wired.sharing
        orders = batch_plan.leased(
            leases,
            tracker,
            dataclasses.replace(card, first_epoch=first),
            groups=source.groups,
            unit=1 if wired.cutting is None else wired.cutting.unit,
            each=batch_size,
            place=None if group is None else lambda: group.place,
            draining=lambda: link.draining,
        )
        if group is not None and sharing is not None:
            sharing.restart(group.place)
            allotting = sharing.allotting
            whole = feeds.read(read_from, orders, wholes=lambda: allotting.wholes, plain=plain)
            return iter(BatchReadahead(whole, allotting.make_ready, allotting.review, sharing.read))
        back = None if direct else tracker
        if parts == 1:
            return feeds.read(read_from, orders, back, draining=lambda: link.draining, plain=plain)
        sized = feeds.split(orders, card.batch_size // parts)
        return feeds.complete(feeds.read(read_from, sized, back, draining=lambda: link.draining))

    @property
    def _splitting(self) -> Splitting | None:
        return self._input.splitting if isinstance(self._input, reader.BatchReader) else None

    def _splits(
        self, source: sources.SampleSource, wired: setup.Wired, on_ready: Callable[[], None] = lambda: None
    ) -> Splitting:
        """Build the search for the part of forward() that data workers can compute, unless an option forbids it."""
        how: Any = {}
        if wired.cutting is not None:
            how = {"forbidden": lambda: IN_ORDER}
        elif (sharing := wired.sharing) is not None:
            how = {"forbidden": lambda: sharing.forbids_split, "on_split": sharing.give_up_cache}
        mode = self._welcome.spec.feeding.split
        return Splitting(wired.model, source, seed=self._welcome.spec.seed, mode=mode, on_ready=on_ready, **how)

    def _at_rest(self) -> None:
        self._registry.send_if_due()
        if isinstance(self._input, reader.BatchReader):
            self._input.between_batches()

    def _reader(self, source: sources.SampleSource, wired: setup.Wired) -> sources.SampleSource | reader.BatchReader:
        if self.alone:
            return source
        if source.samples is None:
            feed_switch.refuse(self._link, feed_switch.NO_INDICES)
            if self._welcome.spec.feeding.poison == "skip":
                log.warning(NOTHING_SKIPPED)
            return source
        return self._batch_reader(source, wired)

    def _batch_reader(self, source: sources.SampleSource, wired: setup.Wired) -> reader.BatchReader:
        def open_feed() -> feed_switch.DataWorkerFeed:
            return feed_switch.DataWorkerFeed(self._splits(source, wired), self._link, self._welcome)

        made = self._input = reader.BatchReader(source, self._link, self._welcome, open_feed)
        self._link.before_finish(made.close)
        return made


def stream_card(
    dataset: StreamDataset, batch_size: int, mode: setup.Mode, *, epochs: int, scaling: str | None, workers: int
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
        raise errors.BadInput('scaling="global_batch": batches of a stream do not depend on the number of workers')
    return DatasetCard(samples=0, batch_size=batch_size, shuffle=False, shard_batches=1, stream=dataset.card)
