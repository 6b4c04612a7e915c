"""The life of a process that looks for a split while the loop trains on: whichever way it came to its model.

In: a model, and batches that it was called with. Out: what prep/split.py has found (prep/found.py), in memory that it
shares with the loop's process; or why there is nothing, and an exit status. It is nobody's trainer: it runs one thread
at lower priority, differentiates nothing, and ends with the loop's process. Started by: prep/beside.py.
"""

import faulthandler
import gc
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from springtide import orphans
from springtide.prep import found, split
from springtide.prep.parts import Unsplit

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

PATIENCE_S = 120.0  # who takes longer hangs: in a fork, some lock was held by a thread that it does not have
NICENESS = 5  # it shares the loop's cores and gets about a quarter of one that both want
FAILED = 1  # how one ends that has found nothing, or not what holds here


class Question(NamedTuple):
    """What is to be split."""

    model: nn.Module
    given: Arguments
    more: Sequence[Arguments] = ()


def live(question: Callable[[], Question], answer: int, parent: int) -> NoReturn:
    """From its first moment to its last."""
    code, told = FAILED, b""
    try:
        orphans.die_with(parent)
        gc.disable()  # nothing of the parent's is to be finalized here
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(2 * PATIENCE_S))
        os.nice(NICENESS)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        faulthandler.enable(answer, all_threads=False)
        torch.set_num_threads(1)  # in a fork the others' threads are not there
        code, told = _look(*question())
    except BaseException:
        told = traceback.format_exc().encode()
    try:
        with os.fdopen(answer, "wb") as file:
            file.write(told)
    finally:
        os._exit(code)


def _look(model: nn.Module, given: Arguments, more: Sequence[Arguments]) -> tuple[int, bytes]:
    made = split.split(model, *given, more=more, gradients=False)
    if isinstance(made, Unsplit) and made.explanation.why.startswith(split.FORWARD_FAILED):
        return FAILED, made.explanation.why.encode()  # it may be this process that it cannot bear
    return 0, found.write(made, model)
