"""`@springtide.stateless`: the user's promise that a function depends only on its arguments, not on parameters.

The mark is for code without torch calls: strings, NumPy, other libraries. A marked call moves to data workers if it
takes model inputs or results of moved calls. Elsewhere the mark has no effect. Read by:
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
"""Handler that receives the function and its arguments, and returns its result."""

_hearing = threading.local()


def stateless(function: Callable[P, R]) -> Callable[P, R]:
    """Declare that `function` (or method) depends only on its arguments and on constants of its object.

    The function must not read parameters, write anything, or draw random numbers. Data workers may then call it instead
    of the trainer.
    """

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        # A module-level helper, which pickles by name: cloudpickle pickles a script's own functions with everything
        # they use.
        answer: R = _called(function, args, kwargs)
        return answer

    marked.__springtide_stateless__ = True  # type: ignore[attr-defined]
    return marked


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    listener: Listener | None = getattr(_hearing, "listener", None)
    return function(*args, **kwargs) if listener is None else listener(function, args, kwargs)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Let `listener` handle this thread's calls of marked functions inside the context; None runs them directly."""
    before = getattr(_hearing, "listener", None)
    _hearing.listener = listener
    try:
        yield
    finally:
        _hearing.listener = before
