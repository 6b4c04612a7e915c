"""The optimizer that `job.prepare` returns. The class wraps the user's optimizer and shares its groups and state, and
its step() is the job's training step.

In: the user's torch.optim optimizer. The wrapper and the user's optimizer share their parameter groups, so a
learning-rate scheduler of either acts on both. Next: worker/step/step.py applies the step.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from springtide import errors


class JobOptimizer(torch.optim.Optimizer):
    """Wrapper of the user's optimizer `own`. `step()` trains tables and dense parameters where they are: on servers or
    in this process."""

    # Because of this attribute, GradScaler lets step() decide to skip, so that a skipped batch still counts.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        own: torch.optim.Optimizer,
        apply: "Callable[[JobOptimizer], None]",
        *,
        fixed: bool,
        tables: Iterable[torch.nn.Parameter] = (),
    ) -> None:
        """Wrap `own`. With `fixed`, no parameter may be added later. Weights of `tables` may never be added."""
        self.own = own
        self._tables = {id(weight) for weight in tables}
        self._apply = apply
        self._fixed = fixed
        self._waiting = False
        self._aside: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        # this sets up only the hooks, because Optimizer.__init__ would build separate groups
        self.__setstate__({"defaults": own.defaults})
        self._take_hooks()

    def _take_hooks(self) -> None:
        """Take the step hooks of `own`, so that they run once a step and see the gradients of tables."""
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(self, name, getattr(self.own, name))
            setattr(self.own, name, OrderedDict())

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.own.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.own.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Train on all batches since the last step. A closure is evaluated once, as SGD and Adam do."""
        return self._watched_step(closure) if is_watched(self) else self._step(closure)

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._waiting = True
        self._apply(self)
        self.own._opt_called = True  # type: ignore[attr-defined]  # for a scheduler made before job.prepare
        return loss

    _watched_step = torch.optim.Optimizer.profile_hook_step(_step)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients. If this optimizer has stepped and a second optimizer has not, first save the gradients for
        their common push.
        """
        if self._waiting:
            params = [param for group in self.param_groups for param in group["params"]]
            self._aside += [(param, param.grad) for param in params if param.grad is not None]
            for param in params:
                param.grad = None
        elif set_to_none and not _profiler_enabled():
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad = None
        else:
            super().zero_grad(set_to_none)

    def bring_back(self) -> list[tuple[torch.nn.Parameter, torch.Tensor | None]]:
        """Restore the saved gradients for the push. Return the newer gradients, which the caller puts back after the
        push."""
        aside, self._aside, self._waiting = self._aside, [], False
        newer = [(param, param.grad) for param, _ in aside]
        for param, grad in aside:
            param.grad = grad
        return newer

    def state_dict(self) -> dict[str, Any]:
        return self.own.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.own.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, if dense parameters are updated in this process. Parameters on servers are fixed."""
        if self._fixed:
            raise errors.BadInput(
                "a parameter group was added after job.prepare, but in async mode dense parameters live on servers, "
                'where their number is fixed: add it before job.prepare, or use sync="bsp"'
            )
        added = param_group["params"] if isinstance(param_group, dict) else ()
        given = [added] if isinstance(added, torch.Tensor) else list(added)
        if any(id(item[1] if isinstance(item, tuple) else item) in self._tables for item in given):
            raise errors.BadInput(
                "the weight of a served table was added to the optimizer after job.prepare, which assigns every table "
                "to its optimizer: add the weight before job.prepare, with lr=0 in its group as long as it is not "
                "trained"
            )
        self.own.add_param_group({**param_group, "params": given} if isinstance(param_group, dict) else param_group)

    def __repr__(self) -> str:
        return f"JobOptimizer({self.own!r})"


def set_option(group: dict[str, Any], name: str, number: float) -> None:
    """Set an option of a parameter group. If the option is a tensor, change the tensor in place."""
    if isinstance(group[name], torch.Tensor):
        group[name].fill_(number)
    elif group[name] != number:
        group[name] = number


def unscale(optimizer: JobOptimizer) -> bool:
    """Do the work that torch.amp.GradScaler leaves to the optimizer: return True if a gradient is infinite, and
    otherwise unscale the gradients."""
    found = getattr(optimizer, "found_inf", None)
    if found is not None and bool(found):
        return True
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(grads, float(scale))
    return False


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a hook or torch's profiler observes the steps. Without an observer, the step can avoid torch's
    wrapper, which costs a tenth of a small step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _profiler_enabled()
    )


# torch wraps the step of every optimizer class once, unless the step is marked as wrapped
setattr(JobOptimizer.step, "hooked", True)  # noqa: B010
