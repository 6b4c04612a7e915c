"""Refuse models and modes at `job.prepare` whose gradients cannot be summed in batch order.

In: worker/job.py and worker/setup.py. Out: BadInput, or nothing.
"""

from torch import nn

from springtide import errors

ACROSS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BY_CHANCE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
OPTION = 'reduction="batch-order"'


def refuse_mode(mode: str, *, indexed: bool) -> None:
    if mode == "async":
        raise errors.BadInput(f'{OPTION} needs sync="bsp": in async mode every worker\'s gradients are applied alone')
    if mode == "bsp" and not indexed:
        raise errors.BadInput(
            f"{OPTION} needs a data set whose samples have numbers: those of an IterableDataset or a stream have no "
            "place in a batch that all workers know"
        )


def refuse_model(model: nn.Module) -> None:
    """Refuse layers that make a sample's gradient depend on more than the sample and the parameters."""
    for name, module in model.named_modules():
        what = f"layer {name!r} ({type(module).__name__})"
        if isinstance(module, ACROSS):
            raise errors.BadInput(
                f"{OPTION}: {what} looks across samples, and keeps statistics of those that a worker has had. Use "
                'LayerNorm, or reduction="rank-order"'
            )
        chance = module.p if isinstance(module, BY_CHANCE) else getattr(module, "dropout", 0.0)
        if isinstance(chance, float) and chance > 0:
            raise errors.BadInput(
                f"{OPTION}: {what} draws at random in the worker that has the sample, so that it matters who that is. "
                'Set its probability to 0, or use reduction="rank-order"'
            )


def refuse_batch(batch_size: int, unit: int, workers: int) -> None:
    if batch_size < unit * workers:
        raise errors.BadInput(
            f'reduction="batch-order:{unit}" with a batch of {batch_size} samples: each of {workers} workers needs '
            f"{unit} of them. Raise batch_size, or train fewer samples at a time"
        )
