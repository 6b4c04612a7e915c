"""End a script that trains without a cluster with a short message for a user error, instead of a traceback.

In: `st.join()` without a master. Out: a `sys.excepthook` that shortens Springtide's user errors and shows all other
errors as usual. If a debugger, a notebook or other code has set its own hook, that hook stays. In a job,
worker/runner.py reports the error to the master instead.
"""

import os
import sys
from types import TracebackType

from springtide import errors
from springtide.worker import error_summary


def show_briefly() -> None:
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1") and not sys.flags.interactive:
        sys.excepthook = _show


def show_all() -> None:
    if sys.excepthook is _show:
        sys.excepthook = sys.__excepthook__


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or not is_plain(error, os.path.abspath(script)):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"error: {error} ({error_summary.place(trace, os.path.abspath(script))})", file=sys.stderr)
    print("SPRINGTIDE_DEBUG=1 shows the traceback", file=sys.stderr)


def is_plain(error: BaseException, script: str) -> bool:
    """Return True if the message alone suffices: the error is invalid input, and no user code raised it."""
    if not isinstance(error, errors.UserError) or isinstance(error, errors.UserCodeFailed):
        return False
    if error.__cause__ is None and (error.__context__ is None or error.__suppress_context__):
        return True
    return error_summary.is_all_ours(error, script)
