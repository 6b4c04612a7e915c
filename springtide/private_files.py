"""Creates files that only their owner can read, under any umask, because a run's folder may contain credentials."""

import os
import pathlib
from typing import Any, BinaryIO

FOLDER = 0o700
FILE = 0o600


def opened(path: str | os.PathLike[str], mode: str, *, buffering: int = -1) -> BinaryIO:
    """Open a file for bytes. If the file is new, only its owner can read it."""
    made: Any = open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags, FILE))  # noqa: SIM115
    return made  # type: ignore[no-any-return]


def replace(path: pathlib.Path, content: bytes) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with opened(part, "wb") as file:
            file.write(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def make(path: pathlib.Path) -> None:
    with opened(path, "ab"):
        pass
