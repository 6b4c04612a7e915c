"""Runs RecBole's Trainer in a job: `from springtide.integrations.recbole import Trainer`.

In: the model, optimizer and training data of RecBole's Trainer, which `job.prepare` gets. Out: RecBole's loop over the
job's batches. Validation runs between epochs, when all workers see all updates: each worker validates a part of the
users, and all workers get the metrics of all users. Next: worker/job.py.

The Trainer's best score and its count for early stopping are a registered object of the job, so a restarted worker
continues with them.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from springtide import errors
from springtide.integrations import best_model, joint_validation
from springtide.integrations.joint_epochs import JointEpochs
from springtide.worker import job as jobs
from springtide.worker.input.batches import Batches

try:
    import recbole.trainer
    from recbole.data.dataloader import TrainDataLoader
except ModuleNotFoundError as error:
    if error.name != "recbole":
        raise
    raise errors.BadInput(
        "a Trainer of RecBole in a job needs recbole, which is not installed; docs/how-to/recbole.md says how"
    ) from None

__all__ = ["Trainer"]

STATE = ("cur_step", "best_valid_score", "best_valid_result", "saved_model_file")
ROWS = ("rec.items", "rec.topk", "rec.meanrank", "rec.score", "data.label")
"""What RecBole collects in a validation, with a row for each user or sample."""


class RecboleTrainer(recbole.trainer.Trainer):
    """`recbole.trainer.Trainer` that trains in a job, or alone if there is no job."""

    def __init__(
        self,
        config: Any,
        model: torch.nn.Module,
        *,
        settings: Mapping[str, Any] | None = None,
        prepare: Mapping[str, Any] | None = None,
    ) -> None:
        """Join the job. `settings` are arguments of `st.join`, and `prepare` are options of `job.prepare`, such as
        {"sync": "bsp"}."""
        refuse(config)
        super().__init__(config, model)
        self.job = jobs.join(**(settings or {}))
        """The job to which this worker belongs."""
        self.model: torch.nn.Module
        self.optimizer: Any
        self.evaluator: Any
        self.saved_model_file: str
        self._options = dict(prepare or {})
        self._loader: JobLoader | None = None

    def fit(self, train_data: Any, valid_data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(train_data, TrainDataLoader):
            raise errors.BadInput(
                f"Trainer.fit got a {type(train_data).__name__} as training data: a job trains RecBole's "
                "TrainDataLoader, which data_preparation returns for general, sequential and context-aware models"
            )
        how = {"batch_size": train_data.step, "shuffle": train_data.shuffle, "num_workers": train_data.num_workers}
        _, self.optimizer, batches = self.job.prepare(
            self.model, self.optimizer, Interactions(train_data), **how, **self._options
        )
        self._loader = JobLoader(train_data, batches, JointEpochs(self.job, self.epochs))
        self.start_epoch = batches.epoch
        self.job.register(BestScore(self), name="recbole.Trainer")
        try:
            found = super().fit(train_data, valid_data, *args, **kwargs)
        except TrainingEnded:
            found = self.best_valid_score, self.best_valid_result
        self._loader.epochs.end()
        self.saved_model_file = self.job.gather(self.saved_model_file)[0]
        return found

    def _train_epoch(self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False) -> Any:
        assert self._loader is not None
        if not self._loader.epochs.begin():
            raise TrainingEnded
        shown = show_progress and self.job.rank == 0
        losses = super()._train_epoch(self._loader, epoch_idx, loss_func, show_progress=shown)
        if self.job.leaving:
            raise SystemExit(0)
        return losses

    # ---- validation and checkpoints ----

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> Any:
        """Validate together: every worker a part of the users, or all of them if the results are too large to pass to
        the other workers."""
        shown, own = show_progress and self.job.rank == 0, self.evaluator
        positions = joint_validation.seat(self.job).part(len(valid_data.sampler))
        try:
            self.evaluator = JointEvaluator(own, self.job)
            return super()._valid_epoch(joint_validation.with_samples(valid_data, positions), shown)
        except ResultsTooLarge:
            self.evaluator = own
            return self.job.gather(super()._valid_epoch(valid_data, shown))[0]
        finally:
            self.evaluator = own

    def evaluate(
        self, eval_data: Any, load_best_model: bool = True, model_file: Any = None, show_progress: bool = False
    ) -> Any:
        if load_best_model and eval_data:
            self._load_best(model_file or self.saved_model_file)
        return super().evaluate(eval_data, load_best_model=False, show_progress=show_progress)

    def _load_best(self, path: str) -> None:
        """Load a checkpoint into the model of this worker, whose tables then are no longer served."""
        if not os.path.isfile(path):
            raise errors.MissingFile(
                f"{path} does not exist, so worker {self.job.rank} cannot evaluate the best model: rank 0 writes it. "
                "Set checkpoint_dir to a folder that all workers share, or evaluate on rank 0 alone"
            )
        checkpoint = torch.load(path, map_location=self.device, weights_only=True)
        best_model.make_plain(self.model)
        self.model.load_state_dict(checkpoint["state_dict"])
        model: Any = self.model
        model.load_other_parameter(checkpoint.get("other_parameter"))

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        """Write the model file, on rank 0 only. RecBole also writes its Config, but a reader would have to unpickle the
        Config.
        """
        if self.job.rank == 0:
            path, model = kwargs.get("saved_model_file", self.saved_model_file), cast(Any, self.model)
            state = {"epoch": epoch, "state_dict": model.state_dict(), "other_parameter": model.other_parameter()}
            torch.save(state, f"{path}.part")
            os.replace(f"{path}.part", path)  # a lost worker leaves no half of a file

    def resume_checkpoint(self, resume_file: Any) -> None:
        raise errors.BadInput(
            "Trainer.resume_checkpoint cannot continue a run, because servers hold the optimizer's state: continue a "
            "job with `springtide run --resume RUN`"
        )


Trainer = RecboleTrainer
"""`RecboleTrainer` under the name of RecBole's own, so that a program changes only its import."""


class TrainingEnded(Exception):
    """Another worker has ended the training."""


class ResultsTooLarge(Exception):
    """The results of a validation cannot be passed to the other workers."""


class Interactions(torch.utils.data.Dataset[Any]):
    """Training interactions of a loader of RecBole, which samples negative items for each batch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return int(self._loader.sample_size)

    def batch(self, indices: Any) -> Any:
        return self._loader.collate_fn(indices)


class JobLoader:
    """A RecBole loader that yields the job's batches."""

    def __init__(self, loader: Any, batches: Batches, epochs: JointEpochs) -> None:
        self.shuffle = loader.shuffle
        self.epochs = epochs
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class JointEvaluator:
    """Evaluator of RecBole that gets the results of all workers."""

    def __init__(self, evaluator: Any, job: jobs.Job) -> None:
        self._evaluator, self._job = evaluator, job

    def evaluate(self, results: Any) -> Any:
        parts = joint_validation.gather(self._job, {name: results.get(name) for name in ROWS if name in results})
        if parts is None:
            raise ResultsTooLarge
        for name in ROWS:
            if rows := [part[name] for part in parts if name in part]:
                results.set(name, torch.cat(rows))
        return self._evaluator.evaluate(results)


class BestScore:
    """Best score and early stopping of a Trainer, which the job saves and restores."""

    def __init__(self, trainer: RecboleTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._trainer, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in STATE:
            setattr(self._trainer, name, state[name])


def refuse(config: Any) -> None:
    """Refuse options of RecBole that a job cannot follow."""
    if not config["single_spec"]:
        raise errors.BadInput("RecBole runs with several processes, expected one: `springtide run` starts the workers")
    if (config["train_neg_sample_args"] or {}).get("dynamic", False):
        raise errors.BadInput(
            'train_neg_sample_args={"dynamic": True} cannot run in a job: it asks the model while batches are read '
            'ahead. Use "dynamic": False'
        )
