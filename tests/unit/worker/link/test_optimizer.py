import pytest
import torch

from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step import dense


@pytest.fixture
def torch_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)


@pytest.fixture
def applied():
    return []


@pytest.fixture
def optimizer(torch_optimizer, applied):
    return JobOptimizer(torch_optimizer, applied.append, fixed=False)


def test_step_hooks_run_around_the_job_step(optimizer, applied):
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("before", len(applied))))
    optimizer.register_step_post_hook(lambda *_: seen.append(("after", len(applied))))
    optimizer.step()
    assert seen == [("before", 0), ("after", 1)]


def test_profiler_shows_steps_by_name(optimizer):
    with torch.profiler.profile() as profile:
        optimizer.zero_grad()
        optimizer.step()
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#JobOptimizer.step", "Optimizer.zero_grad#JobOptimizer.zero_grad"} <= names


def test_zero_grad_drops_gradients_or_fills_them_with_zeros(optimizer, torch_optimizer):
    (param,) = torch_optimizer.param_groups[0]["params"]
    param.grad = torch.ones(2)
    optimizer.zero_grad(set_to_none=False)
    assert param.grad.tolist() == [0, 0]
    optimizer.zero_grad()
    assert param.grad is None


class Counting(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def test_torch_optimizer_is_stepped_only_when_its_parameters_have_gradients(torch_optimizer):
    assert not dense.has_work(torch_optimizer, set())
    (param,) = torch_optimizer.param_groups[0]["params"]
    param.grad = torch.ones(2)
    assert dense.has_work(torch_optimizer, set())
    assert not dense.has_work(torch_optimizer, {id(param)})  # a table's: the store has trained it


def test_table_gradients_stay_when_there_are_no_dense_parameters(torch_optimizer, applied):
    (table,) = torch_optimizer.param_groups[0]["params"]
    table.grad, before = torch.ones(2), table.detach().clone()
    dense.LocalDense([], None).update([JobOptimizer(torch_optimizer, applied.append, fixed=False)], [table])
    assert table.grad.tolist() == [1, 1]
    assert table.equal(before)


def test_custom_or_hooked_optimizer_is_always_stepped(torch_optimizer, applied):
    counting = Counting([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    local = dense.LocalDense([], None)
    local.update([JobOptimizer(counting, applied.append, fixed=False)], [])
    assert counting.steps == 1
    torch_optimizer.register_step_post_hook(lambda *_: None)
    assert dense.has_work(torch_optimizer, set())
