"""Summarizes an error of the user's script: the error, the user's line, and a traceback without Springtide's frames.

In a job, worker/runner.py reports the summary to the master. Without a cluster, an excepthook prints user errors
without a traceback, unless a debugger, a notebook or other code has set its own hook.
"""

import os
import runpy
import sys
import traceback
from types import TracebackType

from springtide import errors

# path of the runner; the runner is not imported, because it runs as `__main__`
RUNNER = os.path.join(os.path.dirname(__file__), "runner.py")
NO_BATCH = (
    ": this worker's loop never ran, because other workers had already trained all batches. "
    "Define variables that are used after the loop before it"
)
RESTARTED = (
    "; this worker was {started}: its script started again, and its loop got only the rest of that epoch. Pass objects "
    "that the script needs from earlier epochs to job.register"
)


def first_line(error: BaseException, script: str, *, unneeded: bool = False, started_late: str = "") -> str:
    """Return the error with its line in the user's code: `ValueError: no such column (train.py:12)`.

    `unneeded`: True if the worker got no batch, so that variables that the user's loop sets may be undefined.
    `started_late`: the epoch in which the script was restarted, if it was.
    """
    if isinstance(error, SyntaxError):
        where = os.path.basename(error.filename or script) + (f":{error.lineno}" if error.lineno else "")
        return f"{type(error).__name__}: {error.msg} ({where})"
    lines = str(error).strip().splitlines()
    text = type(error).__name__ + (f": {lines[0]}" if lines else "")
    if memory := gpu_memory_text(error):
        text = f"{type(error).__name__}: {memory}"
    hint = NO_BATCH if unneeded and isinstance(error, NameError | ZeroDivisionError) else ""
    if started_late:
        hint = RESTARTED.format(started=started_late)
    return f"{text} ({place(error.__traceback__, script)}){hint}"


def gpu_memory_text(error: BaseException) -> str:
    """If the GPU ran out of memory, return what uses its memory; return an empty string for any other error."""
    if type(error).__name__ != "OutOfMemoryError":
        return ""
    from springtide.worker import gpu_memory  # import here, because this module imports torch

    return gpu_memory.explain(error)


def place(trace: TracebackType | None, script: str) -> str:
    """Return the file and line of the innermost frame in the script's folder, or else the name of the script."""
    return (users_lines(trace, script) or [os.path.basename(script)])[-1]


def users_lines(trace: TracebackType | None, script: str) -> list[str]:
    """Return the file and line of each frame in the script's folder, the innermost last."""
    folder = os.path.dirname(script) + os.sep
    found = []
    for frame, line in traceback.walk_tb(trace):
        path = os.path.abspath(frame.f_code.co_filename)
        here = path.startswith(folder) and "site-packages" not in path and not is_ours(path)
        # a frame of code that Cython compiled names a path on the machine where it was built
        if path == script or (here and os.path.exists(path)):
            found.append(f"{os.path.relpath(path, os.path.dirname(script))}:{line}")
    return found


def is_all_ours(error: BaseException, script: str) -> bool:
    """Return True if Springtide raised the error and no earlier error in its chain came from user code."""
    at = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    before = error.__cause__ or error.__context__
    while before is not None:
        if users_lines(before.__traceback__, script):
            return False
        before = before.__cause__ or before.__context__
    return bool(at) and is_ours(os.path.abspath(at[-1]))


def is_ours(path: str) -> bool:
    return path.startswith(os.path.dirname(os.path.abspath(errors.__file__)) + os.sep)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    ours = {RUNNER, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def show_briefly() -> None:
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1") and not sys.flags.interactive:
        sys.excepthook = _show


def show_all() -> None:
    if sys.excepthook is _show:
        sys.excepthook = sys.__excepthook__


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if memory := gpu_memory_text(error):
        error.add_note(memory)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or not is_plain(error, os.path.abspath(script)):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"error: {error} ({place(trace, os.path.abspath(script))})", file=sys.stderr)
    print("SPRINGTIDE_DEBUG=1 shows the traceback", file=sys.stderr)


def is_plain(error: BaseException, script: str) -> bool:
    """Return True if the message alone suffices: the error is invalid input, and no user code raised it."""
    if not isinstance(error, errors.UserError) or isinstance(error, errors.UserCodeFailed):
        return False
    if error.__cause__ is None and (error.__context__ is None or error.__suppress_context__):
        return True
    return is_all_ours(error, script)
