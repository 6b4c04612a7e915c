"""Registered objects: states are sent as plain bytes and restored by name."""

import random

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.worker.epochs import user_objects


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Counter:
    """A user's own object."""

    def __init__(self, seen=0):
        self.seen = seen

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def registered(given=None, every_s=1.0):
    told, clock = [], Clock()
    tell = lambda states, place: told.append(states)  # noqa: E731
    return user_objects.ObjectRegistry(given or {}, tell, every_s=every_s, clock=clock), told, clock


def optimizer(lr=0.1):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


SCHEDULERS = {
    "step": lambda own: torch.optim.lr_scheduler.StepLR(own, step_size=3, gamma=0.5),
    "lambda": lambda own: torch.optim.lr_scheduler.LambdaLR(own, lambda step: 0.9**step),
    "cosine": lambda own: torch.optim.lr_scheduler.CosineAnnealingLR(own, T_max=20),
    "one cycle": lambda own: torch.optim.lr_scheduler.OneCycleLR(own, max_lr=1.0, total_steps=30),
    "sequence": lambda own: torch.optim.lr_scheduler.SequentialLR(
        own,
        [torch.optim.lr_scheduler.LinearLR(own, total_iters=4), torch.optim.lr_scheduler.ExponentialLR(own, 0.9)],
        milestones=[4],
    ),
}


def steps(own, scheduler, count):
    rates = []
    for _ in range(count):
        own.step()
        scheduler.step()
        rates.append(own.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own habits
def test_learning_rate_scheduler_resumes_with_its_rate(kind):
    first = optimizer()
    scheduler = SCHEDULERS[kind](first)
    here, told, _ = registered()
    here.add(scheduler, None)
    steps(first, scheduler, 7)
    here.send()
    second = optimizer()
    again = SCHEDULERS[kind](second)
    there, _, _ = registered(told[-1])
    there.add(again, None)
    assert second.param_groups[0]["lr"] == first.param_groups[0]["lr"]
    assert steps(second, again, 10) == steps(first, scheduler, 10)


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda seed: torch.Generator().manual_seed(seed), lambda one: torch.rand(3, generator=one).tolist()),
        (np.random.default_rng, lambda one: one.random(3).tolist()),
        (random.Random, lambda one: [one.gauss(0, 1) for _ in range(3)]),
    ],
)
def test_random_generator_resumes_where_it_stopped(make, draw):
    mine, told_to = make(1), registered()
    here, told, _ = told_to
    here.add(mine, "chance")
    draw(mine)
    here.send()
    again = make(2)
    there, _, _ = registered(told[-1])
    there.add(again, "chance")
    assert draw(again) == draw(mine)


def test_registered_objects_are_named_by_class_and_restored_only_if_known():
    here, told, _ = registered()
    for seen in (1, 2, 3):
        here.add(Counter(seen), "mine" if seen == 3 else None)
    assert sorted(told[-1]) == ["Counter", "Counter-2", "mine"]
    there, said, _ = registered({name: told[-1][name] for name in ("Counter", "mine")})
    objects = [Counter(), Counter(), Counter()]
    for one, name in zip(objects, (None, None, "mine"), strict=True):
        there.add(one, name)
    assert [one.seen for one in objects] == [1, 0, 3]
    assert len(said) == 1, "what is new to the job is told at once"
    with pytest.raises(errors.BadInput, match="'mine' is registered already"):
        there.add(Counter(), "mine")


def test_registered_states_are_sent_periodically_and_at_the_end():
    here, told, clock = registered(every_s=1.0)
    counter = Counter()
    here.send_if_due()
    assert not told, "nothing is registered"
    here.add(counter, None)
    for step in range(10):
        counter.seen, clock.now = step, clock.now + 0.3
        here.send_if_due()
    here.send()
    assert [state_image.decode_state(states["Counter"])["seen"] for states in told] == [0, 4, 8, 9]


def test_objects_that_cannot_be_saved_are_refused_by_name():
    here, told, _ = registered()
    with pytest.raises(errors.BadInput, match=r"'Thing' cannot be saved: it is a Thing; expected an object with"):
        here.add(type("Thing", (), {})(), None)
    with pytest.raises(errors.BadInput, match=r"'odd' cannot be saved: state\['seen'\] is builtins.object"):
        here.add(Counter(object()), "odd")
    with pytest.raises(errors.BadInput, match=r"have \d+ bytes, 'large' most of them; at most 262144"):
        here.add(Counter(torch.zeros(100_000)), "large")
    assert not told
    here.send()
    assert not told, "a refused object is not registered"


def test_bytes_that_are_not_a_state_are_refused():
    whole = state_image.encode_state({"a": torch.arange(3), "b": [1, "x", None]})
    assert state_image.decode_state(whole)["b"] == [1, "x", None]
    with pytest.raises(errors.BadInput):
        state_image.decode_state(whole[:-1])
    with pytest.raises(errors.BadInput, match="not a saved state"):
        state_image.decode_state(b"\x80\x04pickle" * 20)
