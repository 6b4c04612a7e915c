"""Runs a loop of Hugging Face Accelerate in a job: `from springtide.integrations.accelerate import Accelerator`.

In: the model, optimizers, training DataLoader and schedulers of `accelerator.prepare`. Out: what Accelerate returns for
them, but the loop gets the job's batches. Each worker is the only process of its Accelerate program. So validation
loaders are not divided, and `gather_for_metrics` returns its argument. Next: worker/job.py.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from springtide import errors
from springtide.worker import job as jobs
from springtide.worker.input.batches import Batches

try:
    import accelerate
    from accelerate.state import PartialState
    from accelerate.utils import send_to_device
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise errors.MissingExtra("an accelerate.Accelerator in a job", "accelerate") from None

__all__ = ["Accelerator"]

NO_STATES = (
    "Accelerator.{} cannot run in a job, because servers hold the tables and their optimizer's state: continue a job "
    "with `springtide run --resume RUN`, and save the model with accelerator.save_model"
)


class Accelerator(accelerate.Accelerator):
    """An `accelerate.Accelerator` whose loop trains in a job. Without a job, the loop trains alone."""

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
        if self.gradient_accumulation_steps != 1:
            raise errors.BadInput(
                f"Accelerator(gradient_accumulation_steps={self.gradient_accumulation_steps}) cannot run in a job, "
                "expected 1: use a larger batch_size in the DataLoader"
            )
        self.job = be_worker(self, settings)
        """The job to which this worker belongs."""
        self._options = dict(prepare or {})

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Prepare the model, its optimizers and the training DataLoader in one call, like `job.prepare`. The first
        DataLoader is the DataLoader for training. Objects without an optimizer among them are prepared by Accelerate
        alone.
        """
        given = list(args)
        optimizers = places_of(given, torch.optim.Optimizer)
        if optimizers:
            models, loaders = places_of(given, torch.nn.Module), places_of(given, torch.utils.data.DataLoader)
            if len(models) != 1 or not loaders:
                raise errors.BadInput(
                    f"accelerator.prepare got {len(models)} models, {len(optimizers)} optimizers and {len(loaders)} "
                    "DataLoaders: a job needs one model, its optimizers and its training DataLoader in one call"
                )
            [model], loader, own = models, loaders[0], [given[place] for place in optimizers]
            given[model], prepared, batches = self.job.prepare(given[model], own, given[loader], **self._options)
            given[loader] = batches if self.device.type == "cpu" else DeviceBatches(batches, self.device)
            for place, optimizer in zip(optimizers, prepared, strict=True):
                given[place] = optimizer
        for number, place in enumerate(places_of(given, torch.optim.lr_scheduler.LRScheduler)):
            self.job.register(given[place], name=f"accelerate: scheduler {number}")
        return super().prepare(*given, device_placement=device_placement)

    def check_trigger(self) -> bool:
        """Return True if a worker has called `set_trigger`. Call this method between loops over batches."""
        return bool(self.job.reduce(bool(super().check_trigger()), "max"))

    def save_state(self, *_: Any, **__: Any) -> None:
        raise errors.BadInput(NO_STATES.format("save_state"))

    def load_state(self, *_: Any, **__: Any) -> None:
        raise errors.BadInput(NO_STATES.format("load_state"))


class DeviceBatches:
    """The job's batches on the device of the model, where Accelerate puts batches too."""

    def __init__(self, batches: Batches, device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return map(functools.partial(send_to_device, device=self._device), self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def places_of(given: list[Any], kind: type) -> list[int]:
    return [place for place, one in enumerate(given) if isinstance(one, kind)]


def be_worker(accelerator: Any, settings: Mapping[str, Any] | None) -> jobs.Job:
    """Join the job. Accelerate then takes the rank of the worker for that of its process: rank 0 writes and prints."""
    if accelerator.num_processes > 1:
        raise errors.BadInput(
            f"Accelerate runs with {accelerator.num_processes} processes, expected 1: start the workers with "
            "`springtide run`, not with `accelerate launch` or torchrun"
        )
    job = jobs.join(**(settings or {}))
    for state in PartialState(), accelerator.state:
        state.process_index = state.local_process_index = job.rank
    return job
