"""Find the line of the user's program that makes a torch call, and its text."""

import linecache
import os
import sys
from types import FrameType

import torch

from springtide import errors

OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(errors.__file__) + os.sep, "<")
"""Files of torch and of this package, and code without a file."""
TABLES = os.path.join(OWN[1], "embedding", "")
"""Code of served tables. Other files of this package may be models (zoo), which are split like user models."""
PYTHON = os.path.dirname(os.__file__) + os.sep
PACKAGES = f"{os.sep}site-packages{os.sep}"


def users_line() -> tuple[str, str]:
    """Return the innermost running line of user code, as ("model.py:12", its text).

    If no user code runs, return a line of an installed package, or empty strings.
    """
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
    """Return True if the innermost running code, besides torch and the recorder, belongs to a served table."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((OWN[0], "<")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(TABLES)


def is_users(path: str) -> bool:
    """Return True if a file belongs neither to torch, Python, an installed package nor this package."""
    return not path.startswith((*OWN, PYTHON)) and PACKAGES not in path


def place(path: str, number: int) -> tuple[str, str]:
    return f"{os.path.basename(path)}:{number}", linecache.getline(path, number).strip()
