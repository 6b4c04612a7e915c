"""A worker's process: `python -m springtide.train.runner train.py ...` runs the user's script as `__main__`.

In: the script; its arguments come by the environment (`config.own_arguments`), which other users cannot read. Out: its
end, told to the master: finished, or failed with the user's error on the first line.
The script sees what plain `python train.py` would show it: `__name__`, `__file__`, `sys.argv`, `sys.path[0]`.
"""

import logging
import os
import runpy
import sys
import traceback

from springtide import config, errors
from springtide.domain.job import Blame
from springtide.telemetry import logs, redacting
from springtide.train import link, raised

log = logging.getLogger(__name__)

FENCED = 75  # exit status of a worker whose work is with another: nobody waits for it


def main(arguments: list[str]) -> int:
    """Run the script; the exit status of the worker."""
    script = os.path.abspath(arguments[0])
    logs.log_quietly(debug=config.load().debug)
    sys.argv = [arguments[0], *config.own_arguments(arguments[1:])]
    redacting.remember(*redacting.option_pairs(sys.argv))
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
    trace = "".join(traceback.format_exception(type(error), error, raised.users_part(error.__traceback__)))
    print(f"{logs.SCRIPT_RAISED}\n{redacting.redact(trace)}", file=sys.stderr, flush=True)
    not_theirs = isinstance(error, errors.JobFailed | errors.TemporaryError)
    blame = Blame.INFRASTRUCTURE if not_theirs else Blame.USER
    try:
        here = link.current()
        here.fail(raised.first_line(error, script, unneeded=here.unneeded), trace, blame)
    except errors.SpringtideError as lost:
        log.error("could not tell the master: %s", lost)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
