"""Runs the worker process: `python -m springtide.worker.runner train.py ...` runs the user's script as `__main__`.

The script's arguments come from the environment, which other users cannot read (`config.own_arguments`). Out: a
report to the master when the script ends. The script sees the same `__name__`, `sys.argv` and `sys.path[0]` as under
`python`.
"""

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import runpy
import sys
import traceback
import types
from collections.abc import Sequence

from springtide import child_guard, config, errors, large_imports
from springtide.domain.spec.job_spec import Blame
from springtide.telemetry import logs, output
from springtide.worker import error_summary
from springtide.worker.epochs import user_loops
from springtide.worker.link import master_link

log = logging.getLogger(__name__)

FENCED = 75  # exit status of a fenced worker, whose work another worker has taken over


def main(arguments: list[str]) -> int:
    script = os.path.abspath(arguments[0])
    settings = config.load()
    child_guard.die_with(settings.parent)
    logs.log_quietly(debug=settings.debug)
    sys.argv = [arguments[0], *config.own_arguments(arguments[1:])]
    output.remember(*output.option_pairs(sys.argv))
    sys.path[0] = os.path.dirname(script)
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchComes())
    try:
        run(script, arguments[0])
    except SystemExit as end:
        if end.code not in (None, 0):
            return report_error(end, script)
    except errors.Fenced as error:
        log.warning("left: %s", error)
        return FENCED
    except BaseException as error:
        return report_error(error, script)
    here = master_link.opened()
    if here is not None:
        here.finish()
    return 0


def run(script: str, given: str) -> None:
    """Run the script as `__main__`. In a restarted worker, the script's epoch loop skips finished epochs."""
    code = None
    try:
        here = master_link.current()
        place = here.first_place() if isinstance(here, master_link.MasterLink) else None
        user_loops.note_script(given, script)
        if place is not None and place.loop and os.path.isfile(script):
            code = user_loops.install(script, place.loop)
    except (errors.SpringtideError, OSError, ValueError) as error:
        log.warning("cannot find the script's position in its epochs: %s", error)
    if code is None:
        runpy.run_path(given, run_name="__main__")
        return
    main_module = types.ModuleType("__main__")
    vars(main_module).update(__file__=given, __builtins__=builtins, __cached__=None)
    before, sys.modules["__main__"] = sys.modules["__main__"], main_module
    try:
        exec(code, vars(main_module))
    finally:
        sys.modules["__main__"] = before


def report_error(error: BaseException, script: str) -> int:
    """Report an exception to the master, and write the full traceback to the log."""
    trace = "".join(traceback.format_exception(type(error), error, error_summary.users_part(error.__traceback__)))
    print(f"{logs.SCRIPT_RAISED}\n{output.redact(trace)}", file=sys.stderr, flush=True)
    blame = blame_of(error)
    try:
        here = master_link.current()
        line = error_summary.first_line(error, script, unneeded=here.leases.unneeded, started_late=here.started_late)
        here.fail(line, trace, blame)
    except errors.SpringtideError as lost:
        log.error("the script's error could not be sent to the master: %s", lost)
    return 1


def blame_of(error: BaseException) -> Blame:
    """Report an infrastructure error as the cause, if the script failed because of it."""
    seen: set[int] = set()
    while id(error) not in seen:
        if isinstance(error, errors.JobFailed | errors.TemporaryError):
            return Blame.INFRASTRUCTURE
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error
    return Blame.USER


class _TorchComes(importlib.abc.MetaPathFinder):
    """Import hook that loads `compile_guard` together with torch, because most scripts create their optimizer before
    they join."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_both(module: types.ModuleType) -> None:
                with large_imports.without_collection():
                    load(module)
                    importlib.import_module("springtide.embedding.lookup.compile_guard")

            spec.loader.exec_module = load_both  # type: ignore[method-assign]
        return spec


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
