"""A small folder of code as bytes that fit into a ConfigMap: what `springtide submit` ships with a job.

In: a folder. Out: a tar.gz, the same bytes for the same files; `BadInput` with what is largest where it is too much.
Next: `platforms.k8s.job.unpack` lays it out again in every pod.
"""

import gzip
import io
import pathlib
import tarfile

from springtide import errors

MOST_BYTES = 900_000
"""A ConfigMap may have a mebibyte, in base64's four letters for three bytes only in transit; some is left for names."""
LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})
"""Folders that are nobody's code; so are those whose names begin with a dot."""


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """What is shipped, in order."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") or part in LEFT_OUT for part in parts):
            found.append(path)
    return found


def pack(folder: pathlib.Path) -> bytes:
    """All of it."""
    paths = files_of(folder)
    total = sum(path.stat().st_size for path in paths)
    if total > 100 * MOST_BYTES:  # no compression helps: say so before reading it
        raise too_much(folder, paths, total)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in paths:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
            with open(path, "rb") as file:
                tar.addfile(entry, file)
    if len(out.getvalue()) > MOST_BYTES:
        raise too_much(folder, paths, len(out.getvalue()))
    return out.getvalue()


def too_much(folder: pathlib.Path, paths: list[pathlib.Path], size: int) -> errors.BadInput:
    """What to do about it."""
    largest = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)[:3]
    named = ", ".join(f"{path.relative_to(folder)} ({path.stat().st_size / 1e6:.1f} MB)" for path in largest)
    return errors.BadInput(
        f"the code in {folder} has {size / 1e6:.1f} MB packed; {MOST_BYTES / 1e6:.1f} MB can be shipped with a job. "
        f"Largest: {named}. Keep data out of it, give a smaller workingDir, or put the code into an image"
    )
