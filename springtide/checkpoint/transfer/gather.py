"""Brings a checkpoint together in the run's folder, where its files lie on disks of servers: the last one of a job that
has no URL, so that its model outlives the servers.

In: `python -m springtide.checkpoint.transfer.gather FOLDER NUMBER ADDRESSES CLAIM`, started by
`master.checkpoint.uploads`: a process of its own with little priority; ADDRESSES is JSON: where each server gives files
away; CLAIM too: the run's claim of its folder; the environment has the job's secret. Out: one JSON line, and the
checkpoint as if all servers had seen the folder: it can be gone on from, and exported.
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
from springtide.checkpoint.format.storage import Folder, Place
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import Claim
from springtide.checkpoint.transfer.file_server import PART_BYTES
from springtide.checkpoint.transfer.remote_reader import Scattered
from springtide.checkpoint.transfer.upload import NICE, Uploaded, end_with_parent
from springtide.domain.model.checkpoints import Lineage
from springtide.rpc.messages import messages


def gather(folder: pathlib.Path, number: int, claim: Claim, scattered: Place) -> Uploaded:
    """Fetch what is missing, publish the manifest anew, drop what it does not need."""
    began, here = time.monotonic(), Folder(folder)
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


def fetch(place: Place, name: str, target: pathlib.Path, size: int) -> None:
    """Copy a file; it gets its name when it is whole."""
    unfinished = target.with_suffix(".part")
    with open(unfinished, "wb") as file:
        while (at := file.tell()) < size:
            content = place.read(name, at, min(PART_BYTES, size - at))
            if not content:
                raise errors.BadInput(f"{name} ends after {at} of {size} bytes")
            file.write(content)
    unfinished.rename(target)


def main(arguments: list[str]) -> int:
    """One checkpoint, and a line that says what became of it."""
    folder, number, addresses, claim = arguments
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(NICE)
    settings = config.load()
    known = messages.FileHolders((int(number),), msgspec.json.decode(addresses, type=dict[str, str]))
    try:
        secret = config.job_secret(settings)
        place = Scattered(folder, pathlib.Path(folder), lambda _: known, secret, certificates=settings.tls)
        with contextlib.closing(place):
            done = gather(pathlib.Path(folder), int(number), msgspec.json.decode(claim, type=Claim), place)
    except (errors.SpringtideError, OSError) as error:
        done = Uploaded(int(number), folder, error=str(error))
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


if __name__ == "__main__":
    sys.exit(main(config.own_arguments(sys.argv[1:])))
