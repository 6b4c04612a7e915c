"""Copies the final checkpoint of a job without a URL from servers' disks into the run's folder.

In: `python -m springtide.checkpoint.transfer.gather FOLDER NUMBER ADDRESSES CLAIM`, started by
`master.checkpoint.uploads` as a process of low priority. ADDRESSES is JSON: the address at which each server serves
files. CLAIM is JSON: the run's claim of its folder. The environment has the job's secret. Out: one JSON line, and a
checkpoint that can be resumed and exported.
"""

import contextlib
import os
import pathlib
import sys
import threading
import time

import msgspec

from springtide import config, errors
from springtide.checkpoint.format import reader, writer
from springtide.checkpoint.format.manifest import without_mirrors
from springtide.checkpoint.format.storage import FileStore, FolderStore
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.checkpoint.transfer.file_server import PART_BYTES
from springtide.checkpoint.transfer.remote_reader import ScatteredStore
from springtide.checkpoint.transfer.upload import NICE, Uploaded, end_with_parent
from springtide.domain.model.checkpoints import Lineage
from springtide.rpc.messages import messages


def gather(folder: pathlib.Path, number: int, claim: RunClaim, scattered: FileStore) -> Uploaded:
    """Fetch missing files, publish the manifest again, and delete files that it does not need."""
    began, here = time.monotonic(), FolderStore(folder)
    manifest = reader.known(here, number, lineage=Lineage(claim.run))
    whole = without_mirrors(manifest)
    files = size = 0
    for source, file in zip(manifest.files, whole.files, strict=True):
        if here.size(file.name) != file.size:
            fetch(scattered, reader.whole_copy(scattered, source), folder / file.name, file.size)
            files, size = files + 1, size + file.size
    claims.take(here, claim)
    writer.publish(here, whole)
    writer.drop_unneeded(here, [whole])
    return Uploaded(number, str(folder), files, size, time.monotonic() - began)


def fetch(place: FileStore, name: str, target: pathlib.Path, size: int) -> None:
    """Copy a file, which gets its name when it is complete."""
    unfinished = target.with_suffix(".part")
    with open(unfinished, "wb") as file:
        while (at := file.tell()) < size:
            content = place.read(name, at, min(PART_BYTES, size - at))
            if not content:
                raise errors.BadInput(f"{name} ends after {at} of {size} bytes")
            file.write(content)
    unfinished.rename(target)


def main(arguments: list[str]) -> int:
    folder, number, addresses, claim = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    settings = config.load()
    known = messages.FileHolders((int(number),), msgspec.json.decode(addresses, type=dict[str, str]))
    try:
        secret = config.job_secret(settings)
        place = ScatteredStore(folder, pathlib.Path(folder), lambda _: known, secret, certificates=settings.tls)
        with contextlib.closing(place):
            done = gather(pathlib.Path(folder), int(number), msgspec.json.decode(claim, type=RunClaim), place)
    except (errors.SpringtideError, OSError) as error:
        done = Uploaded(int(number), folder, error=str(error))
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


if __name__ == "__main__":
    sys.exit(main(config.own_arguments(sys.argv[1:])))
