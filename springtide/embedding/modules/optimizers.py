"""Translates torch.optim optimizers and st.* overrides to table kernels and push hyperparameters.

In: the user's optimizer and its parameter groups. Out: an OptimSpec once, and (table, lr, weight decay, step) for every
push. Embedding tables and chunks of dense parameters both use this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
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
Kernel = Callable[[Group], tables.OptimSpec]
TWO_OPTIMIZERS = "job.prepare(model, [torch.optim.Adagrad(table_weights, lr=0.1), other], dataset)"


def _refuse(group: Group, kind: str, *options: str) -> None:
    for option in options:
        if group.get(option):
            raise errors.BadInput(
                f"{kind} with {option}={group[option]} has no kernel on servers; leave {option} out, or give tables an "
                f'optimizer of their own and join with sync="bsp", which runs the other in the worker: '
                f"{TWO_OPTIMIZERS}"
            )


def _sgd(group: Group) -> tables.OptimSpec:
    _refuse(group, "torch.optim.SGD", "maximize")
    return tables.OptimSpec(
        kind="sgd",
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        nesterov=bool(group["nesterov"]),
    )


def _adagrad(group: Group) -> tables.OptimSpec:
    _refuse(group, "torch.optim.Adagrad", "maximize")
    return tables.OptimSpec(
        kind="adagrad", eps=float(group["eps"]), initial_accumulator=float(group["initial_accumulator_value"])
    )


def _adam(group: Group, kind: str = "Adam", **options: bool) -> tables.OptimSpec:
    _refuse(group, f"torch.optim.{kind}", "maximize", "amsgrad")
    beta1, beta2 = group["betas"]
    return tables.OptimSpec(kind="adam", beta1=float(beta1), beta2=float(beta2), eps=float(group["eps"]), **options)


def _rmsprop(group: Group) -> tables.OptimSpec:
    _refuse(group, "torch.optim.RMSprop", "maximize", "momentum", "centered")
    return tables.OptimSpec(kind="rmsprop", alpha=float(group["alpha"]), eps=float(group["eps"]))


def _rowwise_adagrad(group: Group) -> tables.OptimSpec:
    _refuse(group, "RowWiseAdagrad", "maximize")
    return replace(_adagrad(group), kind="rowwise_adagrad")


KERNELS: dict[type[torch.optim.Optimizer], Kernel] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.AdamW: lambda group: _adam(group, "AdamW", decoupled_decay=True),
    torch.optim.Adam: lambda group: _adam(group, decoupled_decay=bool(group.get("decoupled_weight_decay", False))),
    torch.optim.SparseAdam: lambda group: _adam(group, "SparseAdam", eps_outside=False),
    torch.optim.RMSprop: _rmsprop,
}
ADAGRAD_OPTIONS = frozenset({"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"})
ROWWISE = ("RowWiseAdagrad", "RWSAdagrad")
"""Optimizers outside torch, recognized by the name of their class and the options of Adagrad: `st.RowWiseAdagrad` and
TorchRec's class of that name, and the class in DLRM's repository. DLRM's is row-wise for sparse gradients only, and
plain Adagrad for dense gradients.
"""


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
    """Return the kernel for a parameter group of dense parameters."""
    kernel = KERNELS.get(type(optimizer))
    if _rowwise_name(optimizer, group) == "RWSAdagrad":
        kernel = _adagrad
    if kernel is None:
        known = _known("RWSAdagrad", without="SparseAdam")
        raise errors.BadInput(
            f"{type(optimizer).__name__} has no kernel on servers for dense parameters (there are: {known}): use "
            'one of these, or join with sync="bsp", where dense parameters may have any optimizer'
        )
    return kernel(group)


def table_spec_of(optimizer: torch.optim.Optimizer, group: Group, *, sparse: bool) -> tables.OptimSpec:
    """Return the kernel for the tables of a parameter group. `sparse`: True if plain PyTorch would make sparse
    gradients for these tables.
    """
    kernel, rowwise = KERNELS.get(type(optimizer)), _rowwise_name(optimizer, group)
    if rowwise:
        kernel = _rowwise_adagrad if sparse or rowwise == "RowWiseAdagrad" else _adagrad
    if kernel is None:
        raise errors.BadInput(
            f"{type(optimizer).__name__} has no kernel on servers for rows of tables (there are: {_known(*ROWWISE)}): "
            f'give tables an optimizer of their own and join with sync="bsp", which runs the other in the worker: '
            f"{TWO_OPTIMIZERS}"
        )
    return kernel(group)


def differs_from_torch(spec: tables.OptimSpec, group: Group, *, sparse: bool) -> bool:
    """Return True if plain PyTorch would also change rows without a gradient, or their state. Servers never do."""
    if spec.kind == "sgd" and spec.momentum:
        return True
    moments = spec.kind == "rmsprop" or (spec.kind == "adam" and spec.eps_outside)
    return not sparse and (moments or bool(group.get("weight_decay")))


def _rowwise_name(optimizer: torch.optim.Optimizer, group: Group) -> str:
    name = type(optimizer).__name__
    return name if name in ROWWISE and group.keys() >= ADAGRAD_OPTIONS else ""


def _known(*others: str, without: str = "") -> str:
    return ", ".join(sorted({*others, *(kind.__name__ for kind in KERNELS)} - {without}))


def keep_loaded_sums(optimizer: torch.optim.Optimizer) -> None:
    """Make DLRM's RWSAdagrad continue with the sums that load_state_dict() sets. Without this change, the optimizer's
    first step would reset the sums, for example in a worker that joins a bsp group.
    """
    if type(optimizer).__name__ == "RWSAdagrad":
        optimizer.register_load_state_dict_post_hook(_mark_loaded)


def _mark_loaded(optimizer: torch.optim.Optimizer) -> None:
    if any(state.keys() & {"sum", "momentum"} for state in optimizer.state.values()):
        optimizer.momentum_initialized = True  # type: ignore[attr-defined]


def hyper_of(optimizer: torch.optim.Optimizer, group: Group, *, step: int) -> tables.Hyper:
    """Return the hyperparameters of push number `step` (from 1) for the parameters of this group."""
    lr = float(group["lr"]) / (1.0 + (step - 1) * float(group.get("lr_decay", 0.0)))
    decay = float(group.get("weight_decay", 0.0))
    return tables.Hyper(lr=lr, weight_decay=decay, step=step if isinstance(optimizer, torch.optim.SparseAdam) else 0)
