"""The process that searches for a split while the loop trains on.

In: a model, and batches that it was called with. Out: what prep/split.py has found (prep/found.py), in memory that it
shares with the loop's process; or why there is nothing, and an exit status. It runs one thread at lower priority, and
ends with the loop's process. Started by: prep/sending.py.
"""

import faulthandler
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

PATIENCE_S = 120.0  # a search that takes longer hangs: the largest of the zoo takes 6 s of a core, which many may share
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
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(2 * PATIENCE_S))
        os.nice(NICENESS)
        faulthandler.enable(answer, all_threads=False)
        torch.set_num_threads(1)  # the loop has the other cores
        code, told = _look(*question())
    except BaseException:
        told = traceback.format_exc().encode()
    try:
        with os.fdopen(answer, "wb") as file:
            file.write(told)
    finally:
        os._exit(code)


def _look(model: nn.Module, given: Arguments, more: Sequence[Arguments]) -> tuple[int, bytes]:
    made = split.split(model, *given, more=more)
    if isinstance(made, Unsplit) and made.explanation.why.startswith(split.FORWARD_FAILED):
        return FAILED, made.explanation.why.encode()  # it may be this process that it cannot bear
    return 0, found.write(made, model)
