"""Copy segment files of one server to a URL, from a disk that no other process sees.

In: `python -m springtide.checkpoint.transfer.upload_part FOLDER URL FILES`, started by `server.upload` as a process of
low priority. FILES is JSON: paths in the folder, and bytes. Out: one JSON line. Files that this server has sent before
are not sent again. Nobody sees these files before the master publishes a manifest that names them
(`checkpoint.transfer.upload`).
"""

import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from springtide import config
from springtide.checkpoint.format.manifest import bare, folder_of
from springtide.checkpoint.format.storage import FolderStore, StoreTimeout, UrlStore
from springtide.checkpoint.transfer.upload import NICE, SentFiles, end_with_parent


class PartUploaded(msgspec.Struct, frozen=True):
    """The result of a server's part."""

    files: int = 0
    bytes: int = 0
    """Number of bytes sent. Files that were already there do not count."""
    lacks: tuple[str, ...] = ()
    """Files that are missing in the folder, or incomplete."""
    error: str = ""


def send(
    folder: pathlib.Path, url: str, wanted: Sequence[tuple[str, int]], moved: Callable[[], object] = lambda: None
) -> PartUploaded:
    here, there = FolderStore(folder), UrlStore(url)
    there.moved = moved
    lacks = [name for name, length in wanted if (here.size(name) or 0) < length]
    sent = SentFiles(folder / folder_of(wanted[0][0]), there) if wanted else None
    for name, length in wanted:
        if sent is not None and name not in lacks:
            sent.send(folder / name, bare(name), length)
    return PartUploaded(sent.files, sent.bytes, tuple(lacks)) if sent is not None else PartUploaded()


def main(arguments: list[str]) -> int:
    folder, url, files = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    patience = StoreTimeout()
    patience.guard(lambda why: msgspec.json.encode(PartUploaded(error=why)).decode())
    try:
        wanted = msgspec.json.decode(files, type=list[tuple[str, int]])
        done = send(pathlib.Path(folder), url, wanted, patience.moved)
    except Exception as error:  # stores raise many kinds of errors; the master reports them
        done = PartUploaded(error=f"{type(error).__name__}: {error}")
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


if __name__ == "__main__":
    sys.exit(main(config.own_arguments(sys.argv[1:])))
