"""Finds the `for` statement around a script's loops over `batches`, and lets it skip finished epochs.

In: the stack when a loop starts. In a restarted script, also the name of the statement. Out: the recompiled script, in
which `EpochFinished` makes the loop continue with the next epoch: `for ...: body` becomes `for ...: try: body; except
EpochFinished: continue`. Only a restarted script is recompiled. Design: docs/design/epochs.md.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import inspect
import linecache
import os
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from springtide import errors

# name under which `builtins` has `EpochFinished`, so that every module of a script finds it
SIGNAL = "__springtide_epoch_finished__"
OURS = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep


class EpochFinished(BaseException):
    """Signal that makes the `for` statement compiled for it continue with the next epoch."""


class Loop(NamedTuple):
    """A `for` statement, identified by file, function and number."""

    file: str
    function: str
    number: int
    """Index among the loops of the function, in source order."""

    def named(self, folder: str) -> str:
        """Return a name that remains valid after a restart and after most edits, such as `train.py main 0`."""
        return f"{os.path.relpath(self.file, folder)} {self.function} {self.number}"


_compiled: set[Loop] = set()
"""Loops in this process that continue with the next epoch on `EpochFinished`."""
_parsing = threading.Lock()  # Python 3.11 cannot build two syntax trees at the same time (gh-106905)
_parsed: dict[str, list[tuple[str, int, Any]]] = {}
_absolute: dict[str, str] = {}
"""Absolute paths by the file names in code objects. A script may change the directory that a name is relative to."""


def note_script(given: str, script: str) -> None:
    _absolute[given] = script


def script_folder() -> str:
    """Return the folder of the running script, or the current folder if there is no script."""
    return os.path.dirname(_path(getattr(sys.modules.get("__main__"), "__file__", None) or ""))


def _path(named: str) -> str:
    return _absolute.setdefault(named, os.path.abspath(named))


def enclosing(frame: types.FrameType | None) -> Loop | None:
    """Return the innermost `for` loop around the stack. Return None for a `while` loop, outside the user's code, or
    without a loop.
    """
    while frame is not None:
        path = _path(frame.f_code.co_filename)
        if not path.startswith(OURS) and (found := _innermost(frame, path)) is not None:
            function, number, node = found
            own = isinstance(node, ast.For) and not _is_installed(path)
            return Loop(path, function, number) if own else None
        frame = frame.f_back
    return None


def position(frame: types.FrameType | None) -> tuple[tuple[str, int], ...]:
    found = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def variables(frame: types.FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of the user's functions and modules on the stack, innermost first."""
    modules = set()
    while frame is not None:
        path = _path(frame.f_code.co_filename)
        if not path.startswith(OURS) and not _is_installed(path):
            yield _locals(frame)
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                yield frame.f_globals
        frame = frame.f_back


def _locals(frame: types.FrameType) -> dict[str, Any]:
    found = dict(frame.f_locals)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        # clear the copy, because the frame would hold the copy and all its objects until the frame ends
        frame.f_locals.clear()
    return found


def continues(loop: Loop) -> bool:
    """Return True if `EpochFinished` continues this statement."""
    return loop in _compiled


def install(script: str, name: str) -> types.CodeType | None:
    """Make the named statement continue on `EpochFinished`. If the script itself contains the statement, return the
    script's code.

    A statement in a module is compiled when the script imports the module.
    """
    path, function, number = name.rsplit(" ", 2)
    loop = Loop(os.path.normpath(os.path.join(os.path.dirname(script), path)), function, int(number))
    setattr(builtins, SIGNAL, EpochFinished)
    if loop.file == script:
        return _code(loop)
    sys.meta_path.insert(0, _Finder(loop))
    return None


def _code(loop: Loop) -> types.CodeType | None:
    with open(loop.file, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source, loop.file)
    except SyntaxError:
        return None  # ignore the error, because running the script will raise it too
    for function, number, node in _loops(tree):
        if (function, number) == (loop.function, loop.number) and isinstance(node, ast.For):
            handler = ast.ExceptHandler(type=ast.Name(SIGNAL, ast.Load()), name=None, body=[ast.Continue()])
            guarded: Any = ast.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[])
            for part in ast.walk(handler):
                ast.copy_location(part, node.body[-1])
            node.body = [ast.copy_location(guarded, node.body[0])]
            _compiled.add(loop)
            named = next((given for given, path in _absolute.items() if path == loop.file), loop.file)
            return compile(ast.fix_missing_locations(tree), named, "exec", dont_inherit=True)
    return None


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook for the one module that contains the statement."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or os.path.normpath(spec.origin) != self._loop.file:
            return None
        if type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(name, spec.origin, self._loop)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that recompiles the module. The loader bypasses the bytecode cache, which has the unchanged source."""

    def __init__(self, name: str, path: str, loop: Loop) -> None:
        super().__init__(name, path)
        self._loop = loop

    def get_code(self, fullname: str) -> types.CodeType | None:
        return _code(self._loop) or super().get_code(fullname)


def _innermost(frame: types.FrameType, path: str) -> tuple[str, int, ast.stmt] | None:
    code = frame.f_code
    at = next((at for index, at in enumerate(code.co_positions()) if index == frame.f_lasti // 2), None)
    if at is None or at[0] is None or at[2] is None:
        return None
    found = None
    for function, number, node in _loops_of(path):
        first, last = node.body[0], node.body[-1]
        begins, ends = (first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)
        if function == code.co_qualname and begins <= (at[0], at[2]) <= ends:
            found = function, number, node  # keep the last match, because inner loops come after the loops around them
    return found


def _loops_of(path: str) -> list[tuple[str, int, Any]]:
    with _parsing:
        if path not in _parsed:
            try:
                _parsed[path] = list(_loops(ast.parse("".join(linecache.getlines(path)), path)))
            # SystemError occurs if another thread runs the parser at the same time
            except (SyntaxError, ValueError, SystemError):
                return []
        return _parsed[path]


def _loops(tree: ast.AST) -> Iterator[tuple[str, int, Any]]:
    """Yield all loops of a module, outer loops before inner loops: the qualified name of the function, the number of
    the loop in it, and the node."""
    counts: dict[str, int] = {}

    def walk(node: ast.AST, function: str, prefix: str) -> Iterator[tuple[str, int, Any]]:
        """Yield the loops below this node. The qualified names of these loops start with `prefix`."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = prefix + child.name
                yield from walk(child, name, f"{name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                name = prefix + child.name
                yield from walk(child, name, f"{name}.")
            else:
                if isinstance(child, ast.For | ast.AsyncFor | ast.While):
                    counts[function] = counts.get(function, -1) + 1
                    yield function, counts[function], child
                yield from walk(child, function, prefix)

    return walk(tree, "<module>", "")


def _is_installed(path: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in path or path.startswith(os.path.dirname(os.__file__) + os.sep)
