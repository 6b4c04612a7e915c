"""Copies a checkpoint from a run's folder to a URL: its files first, the manifest last, so it is there whole or not.

In: `python -m springtide.checkpoint.transfer.upload FOLDER URL NUMBER KEEP CLAIM`, started by
`master.checkpoint.uploads`: a process of its own with little priority, so that training is not disturbed. CLAIM is
JSON: the run's claim of its places. Out: one JSON line. What this run has sent before is not sent again
(`checkpoint.transfer.sent_files`), nor what servers with disks of their own have sent
(`checkpoint.transfer.upload_part`); the last few checkpoints at the URL are kept. Whoever reads there meanwhile sees an
older one. A store that hangs is given up (`patience`).
"""

import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from springtide import config, errors
from springtide.checkpoint.format import reader, writer
from springtide.checkpoint.format.manifest import File, Manifest, without_mirrors
from springtide.checkpoint.format.storage import Folder, Remote
from springtide.checkpoint.format.store_timeout import Patience
from springtide.checkpoint.transfer import claims, upload_split
from springtide.checkpoint.transfer.claims import Claim
from springtide.checkpoint.transfer.sent_files import SentFiles
from springtide.domain.model.checkpoints import Lineage

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
    folder: pathlib.Path, url: str, number: int, claim: Claim, *, keep: int, moved: Callable[[], object] = lambda: None
) -> Uploaded:  # fmt: skip
    """Send what is missing, publish, drop what is not needed there any more. `moved`: the store has answered."""
    began = time.monotonic()
    here, there = Folder(folder), Remote(url)
    there.moved = moved
    claims.take(there, claim, option="--checkpoint-url")
    mirrored = reader.known(here, number, lineage=Lineage(claim.run))
    manifest = without_mirrors(mirrored)
    sent = SentFiles(folder, there)
    for source, file in zip(mirrored.files, manifest.files, strict=True):
        if upload_split.is_of_server(mirrored, source):
            check_sent(there, file)
        else:
            sent.send(folder / reader.whole_copy(here, source), file.name, file.size)
    claims.take(there, claim, option="--checkpoint-url")  # sending may have taken hours
    writer.publish(there, manifest)
    moved()
    kept = kept_at(there, manifest, keep)
    writer.drop_unneeded(there, kept)
    sent.forget_others({file.name for one in kept for file in one.files})
    return Uploaded(number, url, sent.files, sent.bytes, time.monotonic() - began)


def check_sent(there: Remote, file: File) -> None:
    """Refuse to publish what a server has said to have sent, and is not there."""
    size = there.size(file.name)
    if size != file.size:
        raise errors.BadInput(f"{file.name} is not at {there.where}: {size or 0} of {file.size} bytes")


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
    folder, url, number, keep, claim = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    patience = Patience()
    patience.guard(lambda why: msgspec.json.encode(Uploaded(int(number), url, error=why)).decode())
    try:
        mine = msgspec.json.decode(claim, type=Claim)
        done = upload(pathlib.Path(folder), url, int(number), mine, keep=int(keep), moved=patience.moved)
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
    sys.exit(main(config.own_arguments(sys.argv[1:])))
