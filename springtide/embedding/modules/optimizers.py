"""Translates torch.optim optimizers and st.* overrides to table kernels and push hyperparameters.

In: the user's optimizer and its parameter groups. Out: an OptimSpec once, and (table, lr, weight decay, step) for every
push. Embedding tables and chunks of dense parameters both use this module.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from springtide import errors
from springtide.domain.model import tables

NAMED: dict[str, tables.OptimSpec] = {
    "sgd": tables.OptimSpec(kind="sgd"),
    "adagrad": tables.OptimSpec(kind="adagrad", eps=1e-10),
    "rowwise_adagrad": tables.OptimSpec(kind="rowwise_adagrad", eps=1e-10),
    "adam": tables.OptimSpec(kind="adam"),
    "adamw": tables.OptimSpec(kind="adam", decoupled_decay=True),
    "sparse_adam": tables.OptimSpec(kind="adam", eps_outside=False),
    "rmsprop": tables.OptimSpec(kind="rmsprop"),
    "ftrl": tables.OptimSpec(kind="ftrl"),
}
"""Table optimizers by the name that `st.EmbeddingBag(dim, optimizer="...")` accepts."""


Group = Mapping[str, Any]


def _refuse(group: Group, kind: str, *options: str) -> None:
    for option in options:
        if group.get(option):
            raise errors.BadInput(
                f"torch.optim.{kind} with {option}={group[option]} has no kernel on servers; leave {option} out, "
                'or join with sync="bsp", which runs dense parameters in the worker, and name a table optimizer: '
                'st.EmbeddingBag(dim, optimizer="adagrad")'
            )


def _sgd(group: Group) -> tables.OptimSpec:
    _refuse(group, "SGD", "maximize")
    return tables.OptimSpec(
        kind="sgd",
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        nesterov=bool(group["nesterov"]),
    )


def _adagrad(group: Group) -> tables.OptimSpec:
    _refuse(group, "Adagrad", "maximize")
    return tables.OptimSpec(
        kind="adagrad", eps=float(group["eps"]), initial_accumulator=float(group["initial_accumulator_value"])
    )


def _adam(group: Group, kind: str = "Adam", **options: bool) -> tables.OptimSpec:
    _refuse(group, kind, "maximize", "amsgrad")
    beta1, beta2 = group["betas"]
    return tables.OptimSpec(kind="adam", beta1=float(beta1), beta2=float(beta2), eps=float(group["eps"]), **options)


def _rmsprop(group: Group) -> tables.OptimSpec:
    _refuse(group, "RMSprop", "maximize", "momentum", "centered")
    return tables.OptimSpec(kind="rmsprop", alpha=float(group["alpha"]), eps=float(group["eps"]))


KERNELS: dict[type[torch.optim.Optimizer], Callable[[Group], tables.OptimSpec]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.AdamW: lambda group: _adam(group, "AdamW", decoupled_decay=True),
    torch.optim.Adam: lambda group: _adam(group, decoupled_decay=bool(group.get("decoupled_weight_decay", False))),
    torch.optim.SparseAdam: lambda group: _adam(group, "SparseAdam", eps_outside=False),
    torch.optim.RMSprop: _rmsprop,
}


_SETTLED = (
    "momentum dampening nesterov betas eps alpha centered amsgrad maximize initial_accumulator_value "
    "decoupled_weight_decay"
)
SETTLED = tuple(_SETTLED.split())
"""Options that a kernel gets once, when the table is created. Every push carries the learning rate and the weight
decay."""


def settled(group: Group) -> tuple[Any, ...]:
    return tuple(map(group.get, SETTLED))


def refuse_changed(before: tuple[Any, ...], group: Group) -> None:
    for option, old, now in zip(SETTLED, before, settled(group), strict=True):
        if old != now:
            raise errors.BadInput(
                f"{option} of a parameter group was {old} at job.prepare and is {now} now: servers follow only lr and "
                "weight_decay. A scheduler that changes other options (OneCycleLR, CyclicLR) needs "
                "cycle_momentum=False"
            )


def spec_of(optimizer: torch.optim.Optimizer, group: Group) -> tables.OptimSpec:
    kernel = KERNELS.get(type(optimizer))
    if kernel is None:
        known = ", ".join(sorted(kind.__name__ for kind in KERNELS))
        raise errors.BadInput(
            f"{type(optimizer).__name__} has no kernel on servers (there are: {known}). For tables name one: "
            'st.EmbeddingBag(dim, optimizer="rowwise_adagrad"); for dense parameters join with sync="bsp"'
        )
    return kernel(group)


def hyper_of(optimizer: torch.optim.Optimizer, group: Group, *, step: int) -> tables.Hyper:
    """Return the hyperparameters of push number `step` (from 1) for the parameters of this group."""
    lr = float(group["lr"])
    decay = float(group.get("weight_decay", 0.0))
    if isinstance(optimizer, torch.optim.Adagrad):
        lr /= 1.0 + (step - 1) * float(group["lr_decay"])
    return tables.Hyper(lr=lr, weight_decay=decay, step=step if isinstance(optimizer, torch.optim.SparseAdam) else 0)
