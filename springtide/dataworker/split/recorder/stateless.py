"""`@springtide.stateless`: the user's promise that a function depends only on its arguments, not on parameters.

It is for code without torch calls: strings, NumPy, other libraries. A call of a marked function with inputs of the
model, or results of moved calls, moves to data workers; elsewhere the mark does nothing. Read by:
dataworker/split/recorder/call_recorder.py and dataworker/split/program/call_replay.py, while they run a forward.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Listener = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Is given the function and what it was called with, and answers for it."""

_hearing = threading.local()


def stateless(function: Callable[P, R]) -> Callable[P, R]:
    """Say that `function` (or method) depends on its arguments and constants of its object only.

    It must read no parameter, write nothing, and draw no random numbers. Data workers may call it in your place.
    """

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = _called(function, args, kwargs)  # by name: a script's own functions are pickled with all they use
        return answer

    marked.__springtide_stateless__ = True  # type: ignore[attr-defined]
    return marked


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    listener: Listener | None = getattr(_hearing, "listener", None)
    return function(*args, **kwargs) if listener is None else listener(function, args, kwargs)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Let `listener` answer for marked functions that this thread calls meanwhile; None: they run as they are."""
    before = getattr(_hearing, "listener", None)
    _hearing.listener = listener
    try:
        yield
    finally:
        _hearing.listener = before
