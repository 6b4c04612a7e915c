"""Lines of the user's program: where a call stands, and its text.

Used by: dataworker/split/recorder/call_recorder.py, for `springtide explain-split`; dataworker/split/search/split.py,
for errors.
"""

import linecache
import os
import sys
from types import FrameType

import torch

from springtide import errors

OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(errors.__file__) + os.sep, "<")
"""Torch's files, this package's, and code that is in no file."""
TABLES = os.path.join(OWN[1], "embedding", "")
"""Code of served tables. Other files of this package may be models (zoo), which are split like any other."""
PYTHON = os.path.dirname(os.__file__) + os.sep
PACKAGES = f"{os.sep}site-packages{os.sep}"


def users_line() -> tuple[str, str]:
    """The innermost line that is running and is the user's own, as ("model.py:12", its text); of an installed package
    where there is no other; empty when none is."""
    installed: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(OWN):
            if not path.startswith(PYTHON) and PACKAGES not in path:
                return place(path, frame.f_lineno)
            installed = installed or (frame if PACKAGES in path else None)
        frame = frame.f_back
    return place(installed.f_code.co_filename, installed.f_lineno) if installed is not None else ("", "")


def is_served_table() -> bool:
    """Whether the innermost code that is running, but for torch's and what records it, is a served table's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((OWN[0], "<")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(TABLES)


def is_users(path: str) -> bool:
    """Whether a file is neither torch's, nor Python's, nor of an installed package, nor of this one."""
    return not path.startswith((*OWN, PYTHON)) and PACKAGES not in path


def place(path: str, number: int) -> tuple[str, str]:
    """A line as people write it, and its text."""
    return f"{os.path.basename(path)}:{number}", linecache.getline(path, number).strip()
