"""Copies segment files of one server to a URL, where no other process sees the disk that they lie on.

In: `python -m springtide.checkpoint.transfer.upload_part FOLDER URL FILES`, started by `server.upload`: a process of
its own with little priority, so that serving does not suffer. FILES is JSON: paths in the folder, and bytes. Out: one
JSON line. What this server has sent before is not sent again (`checkpoint.transfer.sent_files`). Nobody sees these
files before the master publishes a manifest that names them (`checkpoint.transfer.upload`).
"""

import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from springtide import config
from springtide.checkpoint.format.manifest import bare, folder_of
from springtide.checkpoint.format.storage import Folder, Remote
from springtide.checkpoint.format.store_timeout import Patience
from springtide.checkpoint.transfer.sent_files import SentFiles
from springtide.checkpoint.transfer.upload import NICE, end_with_parent


class Sent(msgspec.Struct, frozen=True):
    """What became of a server's part."""

    files: int = 0
    bytes: int = 0
    """What was sent; files that were there are not counted."""
    lacks: tuple[str, ...] = ()
    """Files that are not in the folder, or not whole."""
    error: str = ""


def send(
    folder: pathlib.Path, url: str, wanted: Sequence[tuple[str, int]], moved: Callable[[], object] = lambda: None
) -> Sent:
    """Send what is missing there. `moved`: the store has answered."""
    here, there = Folder(folder), Remote(url)
    there.moved = moved
    lacks = [name for name, length in wanted if (here.size(name) or 0) < length]
    sent = SentFiles(folder / folder_of(wanted[0][0]), there) if wanted else None
    for name, length in wanted:
        if sent is not None and name not in lacks:
            sent.send(folder / name, bare(name), length)
    return Sent(sent.files, sent.bytes, tuple(lacks)) if sent is not None else Sent()


def main(arguments: list[str]) -> int:
    """One part, and a line that says what became of it."""
    folder, url, files = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    patience = Patience()
    patience.guard(lambda why: msgspec.json.encode(Sent(error=why)).decode())
    try:
        wanted = msgspec.json.decode(files, type=list[tuple[str, int]])
        done = send(pathlib.Path(folder), url, wanted, patience.moved)
    except Exception as error:  # a store's own errors are many: whichever it is, the master tells it
        done = Sent(error=f"{type(error).__name__}: {error}")
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


if __name__ == "__main__":
    sys.exit(main(config.own_arguments(sys.argv[1:])))
