"""What a user's script raised, in brief: the error, the line of their own code, and a traceback without ours.

In: an exception and the script. Out: words for train/runner.py, train/explaining.py and train/unhandled.py.
"""

import os
import runpy
import traceback
from types import TracebackType

RUNNER = os.path.join(os.path.dirname(__file__), "runner.py")  # not imported: that is run as `__main__`


def first_line(error: BaseException, script: str) -> str:
    """The error and where in the user's own code it came from: `ValueError: no such column (train.py:12)`."""
    if isinstance(error, SyntaxError):
        where = os.path.basename(error.filename or script) + (f":{error.lineno}" if error.lineno else "")
        return f"{type(error).__name__}: {error.msg} ({where})"
    said = str(error).strip().splitlines()
    text = type(error).__name__ + (f": {said[0]}" if said else "")
    return f"{text} ({place(error.__traceback__, script)})"


def place(trace: TracebackType | None, script: str) -> str:
    """File and line of the innermost frame that lies in the script's folder, else of the script itself."""
    folder = os.path.dirname(script) + os.sep
    found = os.path.basename(script)
    for frame, line in traceback.walk_tb(trace):
        path = os.path.abspath(frame.f_code.co_filename)
        if path == script or (path.startswith(folder) and "site-packages" not in path and not is_ours(path)):
            found = f"{os.path.relpath(path, os.path.dirname(script))}:{line}"
    return found


def is_ours(path: str) -> bool:
    """Whether a file belongs to this package rather than to the user."""
    return path.startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of the runner and of runpy at its top."""
    ours = {RUNNER, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
