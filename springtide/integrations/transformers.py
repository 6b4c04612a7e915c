"""Runs the Trainer of Hugging Face transformers in a job: `from springtide.integrations.transformers import Trainer`.

In: the Trainer's model, optimizer and training data, which `job.prepare` gets. Out: the Trainer's loop over the job's
batches, epoch by epoch. Evaluation runs between epochs, when all workers see all updates. Each worker evaluates one
part of the data, and the metrics cover all data. Next: worker/job.py.

The Trainer's state and callbacks are a registered object of the job, so a restarted worker continues with them.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from springtide import errors
from springtide.integrations import best_model, joint_validation
from springtide.integrations.accelerate import DeviceBatches, be_worker
from springtide.integrations.joint_epochs import JointEpochs
from springtide.worker.input.batches import Batches, BatchIterator

try:
    import transformers
    from transformers.trainer_callback import ExportableState, TrainerCallback
    from transformers.trainer_pt_utils import nested_concat
    from transformers.trainer_utils import EvalPrediction, denumpify_detensorize
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise errors.MissingExtra("a transformers.Trainer in a job", "transformers") from None

__all__ = ["Trainer"]

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "max_steps": ((-1, 0), "workers have different numbers of steps: use num_train_epochs and fewer samples"),
    "eval_strategy": (("no", "epoch"), "a job evaluates between epochs, when all workers see all updates"),
    "auto_find_batch_size": ((False,), "choose per_device_train_batch_size"),
    "train_sampling_strategy": (("random", "sequential"), "the job decides which worker trains which sample"),
}
"""Training arguments that have another meaning in a job: the accepted values, and what to do instead."""
log = logging.getLogger(__name__)
PREDICTION = ("predictions", "label_ids", "inputs", "losses")  # what compute_metrics gets
NO_LIMIT = 2**31  # update steps of an epoch, which only the job ends
NO_SAMPLES: dict[str, Any] = {}  # fills up the parts of a short batch
STATE = ("global_step", "best_metric", "best_global_step", "best_model_checkpoint", "total_flos")


class Trainer(transformers.Trainer):
    """`transformers.Trainer` that trains in a job, or alone if there is no job."""

    def __init__(
        self,
        *args: Any,
        settings: Mapping[str, Any] | None = None,
        prepare: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Join the job. `settings` are arguments of `st.join`, and `prepare` are options of `job.prepare`, such as
        {"sync": "bsp"}."""
        super().__init__(*args, **kwargs)
        self.job = be_worker(self.accelerator, settings)
        """The job to which this worker belongs."""
        self.model: Any
        self.compute_metrics: Any
        self._options = dict(prepare or {})
        self._batches: JobBatches | None = None
        self._parts = 1
        """Number of parts of the current batch, with gradient_accumulation_steps."""
        self.callback_handler.callbacks.insert(0, EpochEnd(self))

    # ---- before training ----

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            raise errors.BadInput(
                "Trainer.train(resume_from_checkpoint=...) cannot continue a run, because servers hold the optimizer's "
                "state: continue a job with `springtide run --resume RUN`, or begin with Model.from_pretrained(path)"
            )
        for name, (accepted, instead) in REFUSED.items():
            if (found := getattr(self.args, name)) not in accepted:
                raise errors.BadInput(
                    f"TrainingArguments({name}={str(found)!r}) cannot run in a job, expected {accepted[0]!r}: {instead}"
                )
        if self.args.num_train_epochs != int(self.args.num_train_epochs):
            raise errors.BadInput(
                f"TrainingArguments(num_train_epochs={self.args.num_train_epochs}) cannot run in a job: it trains all "
                "samples of an epoch; use a whole number"
            )
        return super().train(**kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a plain DataLoader for the job, which divides its samples."""
        args, shuffled = self.args, self.args.train_sampling_strategy == "random"
        dataset, collate = self.train_dataset, self.data_collator
        if type(dataset).__module__.startswith("datasets."):
            dataset = self._remove_unused_columns(dataset, description="Training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="Training")
        if (accumulated := args.gradient_accumulation_steps) > 1:
            collate = MicroBatches(collate, self._train_batch_size)
        return DataLoader(
            dataset,
            batch_size=self._train_batch_size * accumulated,
            shuffle=shuffled and not isinstance(dataset, torch.utils.data.IterableDataset),
            collate_fn=collate,
            drop_last=args.dataloader_drop_last,
            num_workers=args.dataloader_num_workers,
        )

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Prepare the job before the Trainer counts steps, because it then counts the steps of this worker."""
        optimizer = self.create_optimizer()
        self.model, self.optimizer, batches = self.job.prepare(self.model, optimizer, dataloader, **self._options)
        self.model_wrapped = self.model
        self._batches = JobBatches(self, batches, dataloader)
        return super().set_initial_training_values(args, self._batches)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        super()._init_training_state(*args, **kwargs)
        assert self._batches is not None
        self.job.register(self._batches, name="transformers.Trainer")
        return self._batches.first, 0

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        model, _ = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.job.register(self.lr_scheduler, name="transformers.Trainer: scheduler")
        return model, self._batches

    # ---- training ----

    def _run_epoch(self, **kwargs: Any) -> None:
        """Run an epoch until the job ends it, because a fast worker gets more than its share of the batches."""
        assert self._batches is not None
        if self._batches.epochs.begin():
            super()._run_epoch(**{**kwargs, "num_update_steps_per_epoch": NO_LIMIT})
        else:
            self.control.should_training_stop = True

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return the parts of a batch, whose gradients one step adds up. A short batch has fewer parts."""
        if num_batches == 1:
            return super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[no-any-return]
        parts = list(next(epoch_iterator, ()))
        self._parts = len(parts)
        items = self._get_num_items_in_batch(parts, device)
        # the Trainer steps after a fixed number of parts
        return parts + [NO_SAMPLES] * (num_batches - len(parts) if parts else 0), items

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inputs is NO_SAMPLES:
            return torch.zeros((), device=self.args.device)
        self.current_gradient_accumulation_steps = self._parts
        return super().training_step(model, inputs, *args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        assert self._batches is not None
        self._batches.epochs.end()
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        """Load the best weights into the model of this worker, whose tables then are no longer served."""
        assert self.state.best_model_checkpoint is not None
        if os.path.isdir(self.state.best_model_checkpoint):  # rank 0 may have written it on another host
            best_model.make_plain(self.model)
        super()._load_best_model()

    # ---- evaluation ----

    def evaluation_loop(self, dataloader: Any, description: str, **kwargs: Any) -> Any:
        """Evaluate together in training: every worker a part, or all of the data if it cannot be divided. All workers
        get the same metrics."""
        evaluate = functools.partial(super().evaluation_loop, description=description, **kwargs)
        if not self.is_in_train:
            return evaluate(dataloader)
        output = None
        if description == "Evaluation" and self._divides(dataloader):
            output = self._evaluate_part(dataloader, evaluate, kwargs.get("metric_key_prefix", "eval"))
        output = output or evaluate(dataloader)
        return output._replace(metrics=self.job.gather(output.metrics)[0])

    def _divides(self, dataloader: Any) -> bool:
        dataset = getattr(dataloader, "dataset", None)
        kept = self.args.dataloader_persistent_workers or self.args.batch_eval_metrics
        sized = hasattr(dataset, "__len__") and not isinstance(dataset, torch.utils.data.IterableDataset)
        return sized and not kept and not self.job.alone

    def _evaluate_part(self, dataloader: Any, evaluate: Callable[..., Any], prefix: str) -> Any:
        """Evaluate this worker's part. Return the output for all parts; None if the predictions are too many to pass to
        the other workers."""
        dataset, compute, predicted = dataloader.dataset, self.compute_metrics, []
        positions = joint_validation.seat(self.job).part(len(dataset))

        def keep(prediction: Any) -> dict[str, float]:
            predicted.append({name: getattr(prediction, name) for name in PREDICTION})
            return {}

        self.compute_metrics = None if compute is None else keep
        try:
            output = evaluate(self.get_eval_dataloader(torch.utils.data.Subset(dataset, positions)))
        finally:
            self.compute_metrics = compute
        loss = output.metrics.get(f"{prefix}_loss")
        own = (None if loss is None else (loss, len(positions)), predicted[0] if predicted else None)
        parts = joint_validation.gather(self.job, own)
        if parts is None:
            log.warning(
                "the predictions for compute_metrics take more than %.1f MiB, so every worker evaluates all data: keep "
                "only what compute_metrics needs, with Trainer(preprocess_logits_for_metrics=...)",
                joint_validation.MOST_BYTES / 2**20,
            )
            return None
        metrics = dict(output.metrics)
        if losses := [part[0] for part in parts if part[0] is not None]:
            total = sum(count for _, count in losses)
            metrics[f"{prefix}_loss"] = sum(loss * count for loss, count in losses) / total
        if compute is not None and (given := [part[1] for part in parts if part[1] is not None]):
            whole = EvalPrediction(**{name: joined([part[name] for part in given]) for name in PREDICTION})
            found = denumpify_detensorize(compute(whole))
            for name, value in found.items():
                metrics[name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"] = value
        return output._replace(metrics=metrics, num_samples=len(dataset))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.args.should_save:
            super()._save_checkpoint(*args, **kwargs)


def joined(parts: list[Any]) -> Any:
    """Return predictions of several parts in one, as the Trainer joins those of several batches."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], list):
        return [batch for part in parts for batch in part]
    return functools.reduce(nested_concat, parts)


class MicroBatches:
    """Collate function of a batch that the Trainer trains in several parts, with one step of the optimizer."""

    def __init__(self, collate: Callable[[list[Any]], Any], size: int) -> None:
        self._collate, self._size = collate, size

    def __call__(self, samples: list[Any]) -> tuple[Any, ...]:
        return tuple(self._collate(samples[at : at + self._size]) for at in range(0, len(samples), self._size))


class JobBatches:
    """Training loader of the Trainer, which gives it the batches of the job, and the state that the job saves."""

    def __init__(self, trainer: Trainer, batches: Batches, loader: Any) -> None:
        self._trainer, self._batches = trainer, batches
        self._source: Any = (
            batches if trainer.args.device.type == "cpu" else DeviceBatches(batches, trainer.args.device)
        )
        self.dataset = loader.dataset
        self.first = batches.epoch
        """First epoch of this worker."""
        self.epochs = JointEpochs(trainer.job, int(trainer.args.num_train_epochs))
        self._steps, self._parts = len(batches), trainer.args.gradient_accumulation_steps
        self._pass: Iterator[Any] | BatchIterator | None = None

    def __len__(self) -> int:
        return int(self._steps * self._parts)

    def __iter__(self) -> Iterator[Any]:
        self._pass = iter(self._source)
        taken = 0
        while self._pass is not None:
            batch = next(self._pass, None)
            if batch is None:
                break
            self._keep_pace(taken)
            taken += 1
            yield batch
        if self._trainer.job.leaving:
            raise SystemExit(0)
        self._trainer.control.should_epoch_stop = True

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def leave(self) -> None:
        """End the loop over the job's batches, as `break` does."""
        self._pass = None

    def _keep_pace(self, taken: int) -> None:
        """Let the schedule follow the epochs of the job, and the Trainer not stop before the job ends an epoch: a fast
        worker takes more batches than its share, and a slow one fewer."""
        trainer, epoch = self._trainer, self.epoch
        if not trainer.job.alone:
            trainer.state.max_steps = max(trainer.state.max_steps, trainer.state.global_step + 2)
        scheduler, step = trainer.lr_scheduler, epoch * self._steps + min(taken, self._steps - 1)
        if isinstance(scheduler, LambdaLR) and scheduler.last_epoch != step:
            scheduler.last_epoch = step - 1
            scheduler.step()

    # ---- state that the job saves ----

    def state_dict(self) -> dict[str, Any]:
        state = self._trainer.state
        callbacks = {type(one).__name__: one.state()["attributes"] for one in self._callbacks()}
        return {"state": {name: getattr(state, name) for name in STATE}, "callbacks": callbacks}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for name in STATE:
            setattr(self._trainer.state, name, saved["state"][name])
        for callback in self._callbacks():
            for name, value in saved["callbacks"].get(type(callback).__name__, {}).items():
                setattr(callback, name, value)

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


class EpochEnd(TrainerCallback):
    """First callback of the Trainer. The callback leaves the job's loop, so that workers can evaluate and decide
    together."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        batches = self._trainer._batches
        assert batches is not None
        batches.leave()
        state.epoch = float(batches.epoch + 1)
