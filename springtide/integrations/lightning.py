"""Runs a LightningModule in a job: `lightning.Trainer(strategy=SpringtideStrategy())`.

In: the module, its optimizers and the DataLoader for `Trainer.fit`. The strategy passes them to `job.prepare`.
Out: the Trainer's loop over the batches of the job. Validation runs at the end of an epoch, when all workers see all
updates. Each worker validates one part of the data, and all workers get metrics over all data. Next: worker/job.py.

The Trainer's counters, schedulers and callbacks are a registered object of the job, so a restarted worker continues
with them.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.integrations import best_model, joint_validation
from springtide.integrations.joint_epochs import JointEpochs
from springtide.worker import job as jobs
from springtide.worker.epochs import user_objects
from springtide.worker.input.batches import Batches, BatchIterator

try:
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.accelerators import CUDAAccelerator
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loops.fetchers import _DataFetcher, _DataLoaderIterDataFetcher
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer import call
    from lightning.pytorch.trainer.states import TrainerFn

    from springtide.integrations import lightning_metrics
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise errors.MissingExtra("a lightning.Trainer in a job", "lightning") from None

__all__ = ["SpringtideStrategy"]

log = logging.getLogger(__name__)
NO_LIMIT = 2**31  # epochs of a Trainer that only `max_steps` or a callback ends
REFUSED: Mapping[str, tuple[Any, str]] = {
    "accumulate_grad_batches": (1, "use a larger batch_size in the DataLoader"),
    "limit_train_batches": (1.0, "a job trains all samples; give the DataLoader a torch.utils.data.Subset"),
    "overfit_batches": (0.0, "give the DataLoader a torch.utils.data.Subset"),
    "val_check_interval": (1.0, "a job validates between epochs, when all workers see all updates"),
    "reload_dataloaders_every_n_epochs": (0, "a job keeps the data set of its first epoch"),
}
"""Options of a Trainer that have another meaning in a job: the accepted value, and what to do instead."""


class SpringtideStrategy(SingleDeviceStrategy):
    """Strategy of a `lightning.Trainer` that trains in a job, or alone if there is no job."""

    strategy_name = "springtide"

    def __init__(self, *, settings: Mapping[str, Any] | None = None, **prepare: Any) -> None:
        """Join the job. `settings` are arguments of `st.join`, and `prepare` are options of `job.prepare`, such as
        sync="bsp"."""
        super().__init__()
        self._settings, self._options = dict(settings or {}), prepare
        self.job = jobs.join(**self._settings)
        """The job to which this worker belongs."""
        self.global_rank = rank_zero_only.rank = self.job.rank
        self.optimizers: list[Any]
        self._loader: Any = None
        self._fetcher: JobFetcher | None = None

    @property
    def root_device(self) -> torch.device:
        return torch.device("cuda", 0) if isinstance(self.accelerator, CUDAAccelerator) else torch.device("cpu")

    @property
    def is_global_zero(self) -> bool:
        return self.job.rank == 0

    # ---- before training ----

    def setup(self, trainer: Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            refuse(trainer)
            if self._fetcher is not None and self.job.alone:
                self.job = jobs.join(**self._settings)  # the same program has called fit() again
            self._loader = None
            trainer.fit_loop._combined_loader = None
            trainer.fit_loop.setup_data()
        super().setup(trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Keep the training DataLoader, which is the first one, for the job. Lightning gets only the length of that
        DataLoader."""
        if self._loader is not None or self.lightning_module is None or not self.lightning_module.trainer.training:
            return dataloader
        self._loader = dataloader
        in_step = (self._options.get("sync") or self.job.sync) == "bsp"
        return LoaderLength(dataloader, 1 if self.job.alone or in_step else self.job.workers)

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if not isinstance(trainer.train_dataloader, LoaderLength):
            raise errors.BadInput(
                f"Trainer.fit got {type(trainer.train_dataloader).__name__} as training data: a job trains one "
                "DataLoader. Combine the data sets, for example with torch.utils.data.ConcatDataset"
            )
        module = self.lightning_module
        _, self.optimizers, batches = self.job.prepare(module, self.optimizers, self._loader, **self._options)
        first = trainer.fit_loop.epoch_progress.current
        first.ready = first.started = first.processed = first.completed = batches.epoch
        trainer.val_check_batch = float("inf")
        self._fetcher = JobFetcher(self, trainer, batches)
        self.job.register(self._fetcher.state, name="lightning.Trainer")
        trainer.callbacks.insert(0, self._fetcher.metrics)

    # ---- training ----

    def on_train_start(self) -> None:
        trainer = self.lightning_module.trainer
        if isinstance(trainer.fit_loop._data_fetcher, _DataLoaderIterDataFetcher):
            raise errors.BadInput("training_step(dataloader_iter) cannot run in a job: take the batch as the argument")
        trainer.fit_loop._data_fetcher = self._fetcher

    def on_train_end(self) -> None:
        assert self._fetcher is not None
        self._fetcher.close()

    # ---- checkpoints ----

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole model on rank 0, which writes checkpoints. Other ranks need not read the tables."""
        return super().lightning_module_state_dict() if self.is_global_zero else {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load a checkpoint. After training, the tables of this worker's model then are no longer served."""
        if self._fetcher is not None:
            best_model.make_plain(self.lightning_module)
        super().load_model_state_dict(checkpoint, strict)

    def teardown(self) -> None:
        """Leave the model where it is, because servers and lookups follow its device."""
        if self._fetcher is not None:
            self._fetcher.leave_pass()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()


class LoaderLength:
    """Placeholder of the training DataLoader, with the number of batches that one worker will get."""

    def __init__(self, loader: Any, workers: int) -> None:
        self._loader, self._workers = loader, workers

    def __len__(self) -> int:
        return -(-len(self._loader) // self._workers)

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class JobFetcher(_DataFetcher):
    """Fetcher that gives the Trainer's loop the batches of the job, epoch by epoch."""

    def __init__(self, strategy: SpringtideStrategy, trainer: Trainer, batches: Batches) -> None:
        super().__init__()
        self._strategy, self._trainer, self._batches = strategy, trainer, batches
        limit = trainer.fit_loop.max_epochs
        self.epochs = JointEpochs(strategy.job, NO_LIMIT if limit is None or limit < 0 else limit)
        self._length = trainer.fit_loop.max_batches
        self._pass: BatchIterator | None = None
        self.state = TrainerState(trainer)
        """State of the Trainer that the job saves."""
        self.metrics = JointMetrics(strategy.job, self)

    def __iter__(self) -> "JobFetcher":
        self.leave_pass()
        self.reset()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self._pass is None:
            self._pass = self._begin()
        try:
            batch = next(self._pass)
        except StopIteration:
            self._end()
            raise
        self.fetched += 1
        # more batches may follow, because a fast worker gets more than its share; only the job ends an epoch
        self._trainer.fit_loop.max_batches = max(self._length, self.fetched + 1)
        return batch, self.fetched - 1, 0

    def reset(self) -> None:
        self.fetched, self.done = 0, False

    def leave_pass(self) -> None:
        """End the loop over the job's batches, as `break` does."""
        self._pass = None

    def close(self) -> None:
        """End training on this worker. The remaining workers end after their current epoch."""
        self.leave_pass()
        self.epochs.end()

    def _begin(self) -> BatchIterator:
        if not self.epochs.begin():
            self._trainer.should_stop = True
            raise StopIteration
        self.state.began = True
        return iter(self._batches)

    def _end(self) -> None:
        """End an epoch: step the schedulers and validate, as Lightning does after the last batch."""
        self.leave_pass()
        if self._strategy.job.leaving:
            raise SystemExit(0)
        trainer = self._trainer
        self.done, loop = True, trainer.fit_loop.epoch_loop
        loop.batch_progress.is_last_batch = True
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if loop._should_check_val_epoch():
            first, loop._batches_that_stepped = (
                trainer._logger_connector._first_loop_iter,
                loop._batches_that_stepped - 1,
            )
            trainer.validating = True
            call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
            self._validate(loop.val_loop)
            trainer.training = True
            trainer._logger_connector._first_loop_iter = first
            loop._batches_that_stepped += 1

    def _validate(self, loop: Any) -> None:
        """Validate this worker's part of the data. If the data cannot be divided, validate all data."""
        loop.setup_data()
        loaders, most = [] if loop._combined_loader is None else loop._combined_loader.flattened, loop._max_batches
        if len(loaders) == 1 and self._divides(loaders[0]):
            place = self.metrics.seat = joint_validation.seat(self._strategy.job)
            count = len(loaders[0].sampler)
            # a loop without batches would skip its hooks: a worker without a part tries one batch, which does not count
            positions = place.part(count) or range(min(count, loaders[0].batch_size))
            part = joint_validation.with_samples(loaders[0], positions)
            loop._combined_loader.flattened, loop._max_batches = [part], [len(part)]
        try:
            loop.run()
        finally:
            self.metrics.seat = None
            if loaders:
                loop._combined_loader.flattened, loop._max_batches = loaders, most

    def _divides(self, loader: Any) -> bool:
        if self._strategy.job.alone or self._trainer.limit_val_batches != 1.0:
            return False
        if not joint_validation.is_divisible(loader) or not len(loader.sampler):
            return False
        return lightning_metrics.MetricStates(self._trainer.lightning_module).are_small


class JointMetrics(Callback):
    """First callback of the Trainer. After a divided validation it adds up the metrics of all workers. Metrics that are
    not added up are replaced by those of the lowest rank, before other callbacks decide with them."""

    def __init__(self, job: jobs.Job, fetcher: JobFetcher) -> None:
        self._job, self._fetcher = job, fetcher
        self.seat: joint_validation.Seat | None = None
        """This worker's index in a divided validation; None if each worker validates all data."""
        self._states: lightning_metrics.MetricStates | None = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._states = None if self.seat is None else lightning_metrics.MetricStates(pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.seat is None or self._states is None:
            return
        results: Any = trainer._results
        counts = self.seat.place is not None
        given = self._job.gather((self._states.changed(), lightning_metrics.logged(results)) if counts else None)
        parts = [part for part in given if part is not None]
        self._states.put([states for states, _ in parts])
        lightning_metrics.put_logged(results, [values for _, values in parts])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._share(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fetcher.leave_pass()  # a limit on steps may end the training in the middle of an epoch
        if not self._fetcher.epochs.ended:
            self._share(trainer)

    def _share(self, trainer: Trainer) -> None:
        own = {name: value.item() for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        given = self._job.gather(own)[0]
        results = trainer._results
        for metric in () if results is None else results.values():
            name, _ = results._forked_name(metric, on_step=False)
            if metric._computed is not None and name in given:
                metric._computed = torch.full_like(metric._computed, given[name])
        _ = trainer.callback_metrics  # reading this property updates Lightning's values


class TrainerState:
    """Counters, schedulers and callbacks of a Trainer, which the job saves and restores."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._left_out: set[str] = set()
        self.began = False
        """Whether training has begun. After that, the Trainer's own state is newer than a restored state."""

    def state_dict(self) -> dict[str, Any]:
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        return {
            "progress": [part.state_dict() for part in self._progress()],
            "stepped": loop._batches_that_stepped,
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "callbacks": {
                name: state
                for name, state in call._call_callbacks_state_dict(trainer).items()
                if self._saves(name, state)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.began:
            return
        trainer = self._trainer
        for part, progress in zip(self._progress(), state["progress"], strict=True):
            part.load_state_dict(progress)
        trainer.fit_loop.epoch_loop._batches_that_stepped = state["stepped"]
        for config, saved in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=False):
            user_objects.put_back(config.scheduler, saved)
        for callback in trainer.callbacks:
            if (known := state["callbacks"].get(callback.state_key)) is not None:
                if isinstance(callback, ModelCheckpoint):
                    callback.dirpath = known["dirpath"]  # a logger may have begun another folder
                callback.load_state_dict(known)

    def _progress(self) -> list[Any]:
        loop = self._trainer.fit_loop.epoch_loop
        optimization = loop.automatic_optimization.optim_progress, loop.manual_optimization.optim_step_progress
        return [loop.batch_progress, loop.scheduler_progress, *optimization]

    def _saves(self, name: str, state: Any) -> bool:
        try:
            state_image.encode_state(state)
        except errors.BadInput as error:
            if name not in self._left_out:
                self._left_out.add(name)
                log.warning("callback %s is not saved with the job's checkpoints: %s", name, error)
            return False
        return True


def refuse(trainer: Trainer) -> None:
    """Refuse options of the Trainer that a job cannot follow."""
    for name, (accepted, instead) in REFUSED.items():
        if (found := getattr(trainer, name)) != accepted:
            raise errors.BadInput(f"Trainer({name}={found!r}) cannot run in a job, expected {accepted!r}: {instead}")
    if trainer.check_val_every_n_epoch is None:
        raise errors.BadInput("Trainer(check_val_every_n_epoch=None) cannot run in a job: it validates between epochs")
    if trainer._checkpoint_connector._loaded_checkpoint:
        raise errors.BadInput(
            "Trainer.fit(ckpt_path=...) cannot continue a run, because servers hold the optimizer's state: continue a "
            "job with `springtide run --resume RUN`, or begin with the weights alone: Module.load_from_checkpoint(path)"
        )
