"""Builds a stack of fully connected layers. In: widths. Out: an `nn.Sequential`."""

from collections.abc import Callable, Sequence

from torch import nn


def mlp(
    inputs: int,
    widths: Sequence[int],
    *,
    outputs: int | None = None,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return linear + activation (+ dropout) for each width, then a plain linear layer to `outputs`, if given."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), activation()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = width
    if outputs is not None:
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)
