"""`st.join()` and `job.prepare(...)`: turn a plain PyTorch script into a worker of a job.

In: the user's model, optimizer and data set. Out: the model, optimizer and batches for the loop. Next:
worker/input/batches.py (the batches), worker/link/optimizer.py (the optimizer), worker/step/step.py (where both meet).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from springtide import config, errors
from springtide.data import shards
from springtide.data import source as sources
from springtide.data.stream.stream import StreamDataset
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model import cache_rules
from springtide.domain.spec import schema
from springtide.domain.spec.job_spec import unit_of
from springtide.embedding.lookup import compile_guard
from springtide.worker import excepthook, setup, user_objects
from springtide.worker.bsp.batch_order import unsupported
from springtide.worker.epochs import user_loops
from springtide.worker.epochs.epochs import EpochTracker
from springtide.worker.epochs.repeats import Repeats
from springtide.worker.epochs.schedules import NAME as SCHEDULES
from springtide.worker.epochs.schedules import Schedules
from springtide.worker.input import (
    accumulation,
    bad_samples,
    batch_plan,
    batches,
    feed_switch,
    iterable,
    lease_prefetch,
    read_batch,
)
from springtide.worker.input.iterable_bsp import IterableRounds
from springtide.worker.input.readahead import BatchReadahead
from springtide.worker.link import master_link, progress
from springtide.worker.link.step_timer import StepMeter
from springtide.worker.load_guard import LoadGuard
from springtide.worker.online import stream_setup as online
from springtide.worker.online.bsp_batches import BspStreamFeed
from springtide.worker.online.stream_batches import StreamFeed
from springtide.worker.split.controller import Splitting
from springtide.worker.step.step import NoListener, StepListener

One = torch.optim.Optimizer
Registered = TypeVar("Registered")
Optimizers = TypeVar("Optimizers", One, list[One], tuple[One, ...])
SCALINGS = ("worker_batch", "global_batch")
IN_ORDER = (
    'reduction="batch-order" trains a batch a few samples at a time; what data workers compute of forward() is for '
    "whole batches"
)


@takes_numbers()
def join(**settings: Any) -> "Job":
    """Join the job that the environment names; without one, train alone on tables in this process.

    `settings` are fields of `springtide.config.Settings` and override the environment.
    """
    compile_guard.wait_for_compiler()
    excepthook.show_briefly()
    loaded = config.load(settings)
    if loaded.debug:
        excepthook.show_all()
    # without a cluster every call starts a new job, so that a notebook can start over
    return Job(loaded, master_link.current(loaded) if loaded.master else master_link.local_link(loaded))


class Job:
    """This worker's membership in its job."""

    witness: "ClassVar[Callable[[Splitting | None, sources.SampleSource], None] | None]" = None
    """Observer of every `prepare` in this process (worker/explain_split.py). It gets None as the splitting if samples
    have no indices.
    """

    def __init__(self, settings: config.Settings, to_master: master_link.MasterLink) -> None:
        self._settings = settings
        self._link = to_master
        self._welcome = to_master.join()
        self._wired: setup.Wired | None = None
        self._splitting: Splitting | None = None
        self.rank: int = self._welcome.rank
        """Number of this worker, from 0."""
        self.workers: int = self._welcome.workers
        """Number of workers of the job."""
        self.sync: str = self._welcome.sync
        """Default synchronization mode of `prepare`: "async" or "bsp"."""
        self.data: Mapping[str, str] = schema.data_of(settings.data)
        """Paths or URLs by name, from the job's spec: `job.data["train"]`."""
        self.meter = StepMeter()
        """Timings of each step; `job.meter.collect()` returns their sums."""
        self._reports = progress.ProgressReporter(to_master, self.meter, every_s=settings.report_every_s)
        to_master.before_finish(self._reports.send)
        place = self._welcome.place
        self._registry = user_objects.ObjectRegistry(
            self._welcome.objects,
            to_master.reports.keep_objects,
            every_s=settings.report_every_s,
            away=place is not None,
        )
        to_master.before_finish(self._registry.send)
        self._tracker = EpochTracker(to_master, self._registry, self._welcome, folder=user_loops.script_folder())

    @property
    def alone(self) -> bool:
        """Whether there is no cluster, so that tables are in this process."""
        return not self._welcome.servers

    @property
    def leaving(self) -> bool:
        """Whether this worker was asked to leave before the end of the data, by Ctrl-C or by scaling down.

        Its loop then ends early. Leave the code after the loop to other workers: ``if not job.leaving:``
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
        """Serve the model's tables, and return the model, the optimizer(s) and the batches for the loop.

        model: its embeddings (nn.Embedding, nn.EmbeddingBag, TorchRec collections, st.EmbeddingBag) become served;
            nothing else changes. Do not wrap the model in DistributedDataParallel.
        optimizer: one torch.optim optimizer or a list of them; the result has the same form.
        dataset: a Dataset, a DataLoader (sets the data set, batch size, shuffle, collate and readers), an
            IterableDataset (every worker reads all of it and trains its share), or an st.stream(...).
        batch_size: samples per batch, of a worker or of all workers (see `scaling`); None: the DataLoader's, else 512.
        accumulate: batches per step; call step() if `batches.completes_step`. In bsp, leave it out and step at will.
        epochs: epochs per loop over the batches. Another loop trains further epochs.
        shuffle: use a new order every epoch; None: the DataLoader's setting, else True.
        sync: "async" (each worker at its own pace) or "bsp" (all workers in step); None: the job's setting.
        scaling: "worker_batch": batch_size counts per worker (default in async; in bsp, weak scaling);
            "global_batch": batch_size counts for all workers (default in bsp). The learning rate never changes.
        max_staleness: async only. Pushes that servers may apply between a step's read and its own push. 0:
            one worker at a time; below workers - 1: some workers wait. None: no limit; rows are read a batch ahead.
        cache: size of each worker's row cache: bytes (an int, "64M"), a share of all rows (a float,
            "10%"), "auto" (bsp: decided by measurement; async: off) or "off"; None: the job's setting.
        cache_staleness: async only. Updates by other workers that a cached row may lack; None: the job's setting, 10.
        allocation: bsp only. Assigns samples to workers: "anneal", "laia" (by cached rows), "random", "contiguous".
        reduction: bsp only. "batch-order" sums sample by sample in order (docs/caching.md); else in rank order.
        """
        mode = self._mode(sync, accumulate)
        how: Any = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "num_workers": num_workers}
        opened = self._opened(sources.open_source(dataset, collate_fn=collate_fn, **how))
        given: Any = optimizer
        own: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        shared = self._shared(opened, mode, cache, cache_staleness, allocation, reduction)
        card = self._card(opened, mode, scaling, epochs, self._settings.seed if seed is None else seed, accumulate)
        each = opened.batch_size if mode == "bsp" and scaling == "worker_batch" else None
        feed = None if opened.online is None else self._stream_feed(opened.online, card, accumulate, each)
        wired = self._wire(model, own, mode, max_staleness, shared, NoListener() if feed is None else feed)
        if feed is None:
            loop = self._batches(opened, card, mode, wired, accumulate, each)
        else:
            loop = online.batches_of(feed, wired, self.meter, self._registry.rest)
        back: Any = type(given)(wired.step.optimizers) if isinstance(given, list | tuple) else wired.step.optimizers[0]
        return wired.model, back, loop

    @takes_numbers("self")
    def epochs(self, total: int) -> Iterator[int]:
        """Return the remaining epochs, 0 to `total` - 1 in a new job: ``for epoch in job.epochs(10):``

        A restarted worker or a resumed run starts with the first unfinished epoch of the script. It gets the rest of
        that epoch's batches, and the schedules and registered objects as they were at that point.

        Epochs count over the whole job: after ``job.epochs(10)``, a loop over ``job.epochs(15)`` has five more. If no
        epoch is left, the loop enters the last epoch again with a batch that trains nothing, so that its variables are
        defined. A worker that was asked to leave gets no further epoch.
        """
        return self._tracker.epochs(total)

    @takes_numbers("self")
    def report(self, **metrics: float) -> None:
        """Show numbers in the job's progress: `loss` is averaged over samples, other metrics show their last value."""
        self._reports.add(metrics)

    def register(self, obj: Registered, *, name: str | None = None) -> Registered:
        """Save and restore an object of the script with the job's checkpoints; return the same object.

        obj: a learning-rate scheduler, a random number generator (torch's, NumPy's, Python's), or any object with
            `state_dict()` and `load_state_dict()`. All registered objects together may take 256 KiB.
        name: identifies the object after a restart; default: its class name, numbered in order of registration.

        The worker saves the state between two steps, about twice a second, and at the end of the script. A restarted
        worker, or a job that resumes from a checkpoint, restores the state at once. A new worker gets the state of the
        lowest rank.
        """
        self._registry.add(obj, name)
        return obj

    def flush(self) -> None:
        """Write cached rows of workers to the servers, so that a read in the middle of a pass is exact.

        In a bsp group with caches, every worker must call it at the same step, right after `optimizer.step()`. In all
        other jobs it does nothing, because rows are on the servers.
        """
        if self._wired is not None:
            self._wired.step.flush_now()

    def finish(self) -> None:
        """Report that the script is done; `springtide run` does this for scripts that it starts."""
        self._link.finish()

    def _shared(
        self,
        opened: sources.SampleSource,
        mode: setup.Mode,
        cache: str | int | float | None,
        staleness: int | None,
        allocation: str | None,
        reduction: str | None,
    ) -> setup.SharingOptions:
        if mode == "async" and allocation is not None:
            raise errors.BadInput('allocation= needs sync="bsp": else every worker has its own batches')
        if mode == "bsp" and staleness is not None:
            raise errors.BadInput('cache_staleness= needs sync="async": in step, no row that is used lacks anything')
        rules = cache_rules.rules(cache, allocation=allocation, staleness=staleness, base=self._welcome.cache)
        return setup.SharingOptions(opened, rules, unit_of(reduction))

    def _wire(
        self,
        model: nn.Module,
        own: list[Any],
        mode: setup.Mode,
        max_staleness: int | None,
        shared: setup.SharingOptions,
        listener: StepListener,
    ) -> setup.Wired:
        told = self._reports.step
        wired = setup.wire(
            model, own, mode, self._link, self._settings, self.meter, told, max_staleness, shared, listener
        )
        self._keep(wired)
        return wired

    def _keep(self, wired: setup.Wired) -> None:
        self._wired = wired
        self._tracker.schedules = Schedules(wired.step.optimizers, self._registry.holds)
        self._registry.add(self._tracker.schedules, SCHEDULES)
        if wired.sharing is not None:
            self._reports.cache = wired.sharing.use
        if (kept := wired.copies) is not None:
            self._reports.cache = kept.use
        self._link.before_finish(wired.step.retire)
        if not self.alone:
            LoadGuard(wired.model)

    def _mode(self, sync: str | None, accumulate: int = 1) -> setup.Mode:
        if self._wired is not None:
            raise errors.BadInput(
                "job.prepare was called before: a job trains one model. Alone, st.join() begins another"
            )
        asked = sync or self._welcome.sync
        if asked not in ("async", "bsp"):
            raise errors.UnknownName("sync mode", asked, ["async", "bsp"])
        mode: setup.Mode = "alone" if self.alone else "bsp" if asked == "bsp" else "async"
        accumulation.check(accumulate, in_step=mode == "bsp")
        if mode == "bsp" and self._welcome.certificates and not self._settings.plain_groups:
            raise errors.BadInput(
                'sync="bsp" in a job with TLS: a group sums dense gradients over torch\'s gloo, which has no TLS. '
                'Use sync="async", run the job without TLS, or allow it: st.join(plain_groups=True)'
            )
        return mode

    def _opened(self, source: sources.SampleSource) -> sources.SampleSource:
        """Return the data set as this job reads it."""
        skips = self._welcome.feeding.poison == "skip"
        return bad_samples.telling(source) if skips and source.samples is None and source.online is None else source

    def _card(
        self,
        opened: sources.SampleSource,
        mode: setup.Mode,
        scaling: str | None,
        epochs: int,
        seed: int,
        accumulate: int,
    ) -> DatasetCard:
        """Return the master's description of the data. For the master and the servers, an accumulated sum of batches is
        one batch.
        """
        epochs = validation.number(epochs, "epochs", "a whole number, 1 or more", least=1)
        self._tracker.epochs_a_loop = epochs
        seed = validation.number(seed, "seed", "a whole number that fits into 64 bits", least=-validation.LARGEST)
        batch_size = opened.batch_size * accumulate
        if opened.online is not None:
            return online.card_of(opened.online, batch_size, mode, epochs=epochs, scaling=scaling, workers=self.workers)
        scaling = scaling or ("global_batch" if mode == "bsp" else "worker_batch")
        if scaling not in SCALINGS:
            raise errors.UnknownName("scaling", scaling, SCALINGS)
        if mode == "bsp" and scaling == "worker_batch":
            batch_size *= self.workers
        if mode == "async" and scaling == "global_batch":
            if opened.batch_size < self.workers:
                raise errors.BadInput(
                    f"batch_size={opened.batch_size} cannot be shared by {self.workers} workers; raise it"
                )
            batch_size = opened.batch_size // self.workers * accumulate
        card = DatasetCard(
            samples=opened.samples or 0,
            batch_size=batch_size,
            epochs=epochs,
            shuffle=opened.shuffle,
            seed=seed,
            drop_last=opened.drop_last,
            in_step=mode == "bsp",
        )
        return card if card.in_step else dataclasses.replace(card, shard_batches=shards.batches_a_shard(card.batches))

    def _stream_feed(
        self, dataset: StreamDataset, card: DatasetCard, accumulate: int, each: int | None
    ) -> StreamFeed | BspStreamFeed:
        if not self.alone:
            feed_switch.refuse(self._link, online.NO_DATA_WORKERS)
        return online.open_feed(dataset, card, self._link, self._reports, parts=accumulate, each=each)

    def _batches(
        self, opened: sources.SampleSource, card: DatasetCard, mode: setup.Mode, wired: setup.Wired, accumulate: int,
        each: int | None,
    ) -> batches.Batches:  # fmt: skip
        in_step = mode == "bsp"
        group = self.workers if in_step else 1
        cutting = wired.cutting
        unit = 1 if cutting is None else cutting.unit
        if cutting is not None:
            unsupported.refuse_batch(min(card.batch_size, card.samples_used), unit, group)
        together = wired.group
        place = None if together is None else lambda: together.place
        if opened.samples is not None:
            card = batch_plan.fit_to_group(card, group * unit)
            self._splitting = self._splits(opened, wired)
        reader = self._reader(opened)
        if Job.witness is not None:
            Job.witness(self._splitting, opened)

        def feed(passes: int) -> Iterator[read_batch.ReadBatch]:
            first = passes * card.epochs
            epochs = range(first, first + card.epochs)
            if opened.samples is None and in_step:
                return IterableRounds(opened, rank=self.rank, workers=self.workers).shared(
                    wired.sharing, wired.group, epochs
                )
            if opened.samples is None:
                return iterable.leased(opened, card, epochs, self._link, alone=self.alone, parts=accumulate)
            this_pass = dataclasses.replace(card, first_epoch=first)
            ask, tracker = self._link.leases.lease, self._link.leases.tracker
            direct = in_step or self.alone
            source = lease_prefetch.DirectLeases(ask) if direct else lease_prefetch.PrefetchedLeases(ask, tracker)
            draining = lambda: self._link.draining  # noqa: E731
            wanted = batch_plan.leased(source, tracker, this_pass, unit=unit, each=each, place=place, draining=draining)
            sharing = wired.sharing
            if together is None or sharing is None:
                back = None if direct else tracker
                if accumulate == 1:
                    return batches.read(reader, wanted, back, draining=draining, plain=cutting is None)
                sized = accumulation.split(wanted, card.batch_size // accumulate)
                return accumulation.complete(batches.read(reader, sized, back, draining=draining))
            sharing.restart(together.place)
            allotting = sharing.allotting
            whole = batches.read(reader, wanted, wholes=lambda: allotting.wholes, plain=cutting is None)
            return iter(BatchReadahead(whole, allotting.make_ready, allotting.review, sharing.read))

        repeats = Repeats(opened, card, wired.model, wired.step, parts=accumulate, unit=unit)
        fixed = opened.samples is not None and (in_step or self.workers == 1) and cutting is None
        size = card.batch_size // accumulate
        length = card.epochs * len(batch_plan.batch_bounds(card.samples_used, size, group)) if fixed else None
        return batches.Batches(
            feed if cutting is None else lambda passes: cutting.cut(feed(passes)), wired.step, self.meter,
            ahead=wired.ahead, length=length, splitting=self._splitting, at_rest=self._at_rest(reader),
            tracker=self._tracker, repeats=repeats, epochs=card.epochs,
        )  # fmt: skip

    def _splits(self, opened: sources.SampleSource, wired: setup.Wired) -> Splitting:
        """Build the search for the part of forward() that data workers can compute, unless a job option forbids the
        split.
        """
        how: Any = {}
        if wired.cutting is not None:
            how = {"forbidden": lambda: IN_ORDER}
        elif (sharing := wired.sharing) is not None:
            how = {"forbidden": lambda: sharing.forbids_split, "on_split": sharing.give_up_cache}
        return Splitting(wired.model, opened, seed=self._welcome.seed, mode=self._welcome.feeding.split, **how)

    def _at_rest(self, reader: "sources.SampleSource | feed_switch.Feeding") -> Callable[[], None]:
        """Return the function to call between two batches, in the loop's thread."""
        if not isinstance(reader, feed_switch.Feeding):
            return self._registry.rest

        def at_rest() -> None:
            self._registry.rest()
            reader.between_batches()

        return at_rest

    def _reader(self, opened: sources.SampleSource) -> "sources.SampleSource | feed_switch.Feeding":
        """Return the reader of batches. With a master and samples with indices, data workers may take over."""
        if self.alone:
            return opened
        if self._splitting is None:
            feed_switch.refuse(self._link, feed_switch.NO_INDICES)
            return opened
        fed = feed_switch.Feeding(opened, self._splitting, self._link, self._welcome)
        self._reports.feed = lambda: fed.state
        self._link.before_finish(fed.close)
        return fed
