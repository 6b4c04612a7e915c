"""Row-wise Adagrad as a torch optimizer, for tables that are nn.Embedding or nn.EmbeddingBag.

In: the weights of tables. Out: after `job.prepare`, servers train the rows with their row-wise Adagrad
(embedding/modules/optimizers.py). In plain PyTorch, `step()` trains them in the same way.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from springtide import errors

Group = dict[str, Any]


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one sum per row: each step adds the mean of the squares of the row's gradient. The state is `dim`
    times smaller.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        """Create the optimizer. The arguments are the same as for `torch.optim.Adagrad`. `weight_decay` changes only
        rows that have a gradient.
        """
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        }
        for name, number in defaults.items():
            if not 0 <= float(number) < math.inf:
                raise errors.BadInput(f"RowWiseAdagrad: {name}={number!r}: expected a number, 0 or more")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)
        return loss

    def _update(self, param: torch.Tensor, group: Group) -> None:
        state = self.state[param]
        if not state:  # not in __init__, because tables that servers train need no state here
            state["step"] = 0
            state["sum"] = torch.full(
                param.shape[:1], group["initial_accumulator_value"], dtype=torch.float32, device=param.device
            )
        state["step"] += 1
        rows, grad = _rows(param.grad)
        weights = param[rows]
        grad = grad + group["weight_decay"] * weights if group["weight_decay"] else grad
        sums = state["sum"][rows] + grad.float().square().flatten(1).mean(1)
        state["sum"][rows] = sums
        lr = group["lr"] / (1.0 + (state["step"] - 1) * group["lr_decay"])
        size = (lr / (sums.sqrt() + group["eps"])).view(-1, *[1] * (grad.dim() - 1))
        param[rows] = (weights - size * grad).to(param.dtype)


def _rows(grad: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that have a gradient, and their gradients."""
    if grad.is_sparse:
        grad = grad.coalesce()
        return grad.indices()[0], grad.values()
    if grad.dim() < 2:
        raise errors.BadInput(
            f"RowWiseAdagrad got a parameter of shape {tuple(grad.shape)}, which has no rows: give it only the weights "
            "of tables, and the other parameters to an optimizer such as torch.optim.Adagrad"
        )
    rows = grad.flatten(1).any(1).nonzero()[:, 0]
    return rows, grad[rows]
