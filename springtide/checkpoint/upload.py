"""Copies a checkpoint from a run's folder to a URL: its files first, the manifest last, so it is there whole or not.

In: `python -m springtide.checkpoint.upload FOLDER URL NUMBER KEEP`, started by `master.uploading`: a process of its own
with little priority, so that training is not disturbed. Out: one JSON line. Files that are there already are not sent
again, nor those that servers with disks of their own have sent (`checkpoint.upload_part`); the last few checkpoints at
the URL are kept. Whoever reads there meanwhile sees an older one. A store that hangs is given up (`patience`).
"""

import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from springtide import errors
from springtide.checkpoint import reader, writer
from springtide.checkpoint.manifest import Manifest, without_mirrors
from springtide.checkpoint.patience import Patience
from springtide.checkpoint.places import Folder, Remote

NICE = 10


class Uploaded(msgspec.Struct, frozen=True):
    """What became of an upload."""

    number: int
    url: str
    files: int = 0
    bytes: int = 0
    """What was sent; files that were there are not counted."""
    seconds: float = 0.0
    error: str = ""


def upload(
    folder: pathlib.Path, url: str, number: int, *, keep: int, moved: Callable[[], object] = lambda: None
) -> Uploaded:
    """Send what is missing, publish, drop what is not needed there any more. `moved`: the store has answered."""
    began = time.monotonic()
    here, there = Folder(folder), Remote(url)
    there.moved = moved
    mirrored = reader.known(here, number)
    manifest = without_mirrors(mirrored)
    present = set(there.names())
    files = size = 0
    for source, file in zip(mirrored.files, manifest.files, strict=True):
        if file.name in present and there.size(file.name) == file.size:
            continue
        there.put(folder / reader.whole_copy(here, source), file.name)
        files, size = files + 1, size + file.size
    writer.publish(there, manifest)
    moved()
    writer.drop_unneeded(there, kept_at(there, manifest, keep))
    return Uploaded(number, url, files, size, time.monotonic() - began)


def kept_at(there: Remote, newest: Manifest, keep: int) -> list[Manifest]:
    """The manifests that stay at the URL, the newest and those before it that can be read."""
    kept = [newest]
    for number in reader.numbers(there):
        if number < newest.number and len(kept) < keep:
            try:
                kept.append(reader.read(there, number))
            except (errors.BadInput, OSError):  # it is of no use to anyone
                continue
    return kept


def main(arguments: list[str]) -> int:
    """One upload, and a line that says what became of it."""
    folder, url, number, keep = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    patience = Patience()
    patience.guard(lambda why: msgspec.json.encode(Uploaded(int(number), url, error=why)).decode())
    try:
        done = upload(pathlib.Path(folder), url, int(number), keep=int(keep), moved=patience.moved)
    except Exception as error:  # a store's own errors are many: whichever it is, the master tells it
        done = Uploaded(int(number), url, error=f"{type(error).__name__}: {error}")
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


def end_with_parent() -> None:
    """Standard input is a pipe that the parent holds: when it closes, nobody waits for this any more."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
