"""An optimizer that behaves in public like RWSAdagrad of DLRM's repository: its options, its state and its updates.

Sparse gradients are trained row-wise, dense gradients as in Adagrad. As there, the first step creates the sums, even
after load_state_dict().
"""

import torch


class RWSAdagrad(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10):
        options = (lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        names = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
        super().__init__(params, dict(zip(names, options, strict=True)))
        self.momentum_initialized = False
        for param in self.trained():
            self.state[param]["step"] = 0

    def trained(self):
        return [param for group in self.param_groups for param in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, group)
        self.momentum_initialized = True

    def update(self, param, group):
        state, grad = self.state[param], param.grad
        if not self.momentum_initialized:
            name, shape = ("momentum", param.shape[:1]) if grad.is_sparse else ("sum", param.shape)
            state[name] = torch.full(shape, float(self.defaults["initial_accumulator_value"]))
        state["step"] += 1
        rate = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        if not grad.is_sparse:
            grad = grad + group["weight_decay"] * param
            state["sum"] += grad * grad
            param -= rate * grad / (state["sum"].sqrt() + group["eps"])
            return
        if group["weight_decay"]:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        grad = grad.coalesce()
        rows, values = grad.indices()[0], grad.values()
        state["momentum"][rows] += (values * values).mean(1)
        param[rows] -= rate * values / (state["momentum"][rows].sqrt() + group["eps"])[:, None]
