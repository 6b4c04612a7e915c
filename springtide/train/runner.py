"""A worker's process: `python -m springtide.train.runner train.py ...` runs the user's script as `__main__`.

In: script and arguments. Out: its end, told to the master: finished, or failed with the user's error on the first line.
The script sees what plain `python train.py` would show it: `__name__`, `__file__`, `sys.argv`, `sys.path[0]`.
"""

import logging
import os
import runpy
import sys
import traceback
from types import TracebackType

from springtide import config, errors
from springtide.domain.job import Blame
from springtide.telemetry import logs
from springtide.train import link

log = logging.getLogger(__name__)

FENCED = 75  # exit status of a worker whose work is with another: nobody waits for it


def main(arguments: list[str]) -> int:
    """Run the script; the exit status of the worker."""
    script = os.path.abspath(arguments[0])
    logs.log_quietly(debug=config.load().debug)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            return tell(end, script)
    except errors.Fenced as error:
        log.warning("left: %s", error)
        return FENCED
    except BaseException as error:
        return tell(error, script)
    here = link.opened()
    if here is not None:
        here.finish()
    return 0


def tell(error: BaseException, script: str) -> int:
    """Report an exception to the master, and leave the whole of it in the log."""
    trace = "".join(traceback.format_exception(type(error), error, users_part(error.__traceback__)))
    print(f"{logs.SCRIPT_RAISED}\n{trace}", file=sys.stderr, flush=True)
    not_theirs = isinstance(error, errors.JobFailed | errors.TemporaryError)
    blame = Blame.INFRASTRUCTURE if not_theirs else Blame.USER
    try:
        link.current().fail(first_line(error, script), trace, blame)
    except errors.SpringtideError as lost:
        log.error("could not tell the master: %s", lost)
    return 1


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
    """A traceback without the frames of this runner and of runpy at its top."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
