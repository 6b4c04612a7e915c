"""Copies the files of a checkpoint. Runs as a separate process of low priority, and prints one JSON line.

Arguments: `upload FOLDER URL NUMBER KEEP CLAIM` copies a checkpoint to a URL, `part FOLDER URL FILES` copies from a
server's own disk, and `gather FOLDER NUMBER ADDRESSES CLAIM` fetches from servers' disks. CLAIM, FILES and ADDRESSES
are JSON.
"""

import contextlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from springtide import config, errors, private_files
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import File, Manifest, bare, folder_of, without_mirrors
from springtide.checkpoint.format.storage import ANSWERS, FileStore, FolderStore, UrlStore, end_when_silent
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.model.checkpoints import Lineage

NAME = "uploads.json"
NICE = 10
FETCH_BYTES = 4 << 20


class _Record(msgspec.Struct):
    url: str
    """Destination URL, which may contain a password. Only the owner can read this file."""
    files: dict[str, tuple[int, str]]
    """Bytes and store version of each sent file, by name."""


class SentFiles:
    """Files that this run has sent from one folder to one URL, recorded in `uploads.json`. Only one process may use the
    record at a time.

    The record holds size and store version of each file. If another run wrote a file of the same name, or if the file
    changed later, the store's version differs, and this run sends the file again.
    """

    def __init__(self, folder: pathlib.Path, there: UrlStore) -> None:
        self._folder, self._there = FolderStore(folder), there
        self._present = set(there.names())
        self._record = self._read()
        self.files = self.bytes = 0
        """Number of files and bytes that this process has sent."""

    def send(self, source: pathlib.Path, name: str, size: int) -> None:
        """Ensure that the URL has the first `size` bytes of this file under this name."""
        known = self._record.files.get(name)
        if known is not None and name in self._present and known == (size, self._there.version(name)):
            return
        self._there.put(source, name, size)
        self._record.files[name] = (size, self._there.version(name))
        self._write()
        self.files, self.bytes = self.files + 1, self.bytes + size

    def forget_others(self, needed: Collection[str]) -> None:
        self._record.files = {name: known for name, known in self._record.files.items() if name in needed}
        self._write()

    def _read(self) -> _Record:
        try:
            record = msgspec.json.decode(self._folder.read(NAME), type=_Record)
        except (OSError, *UNDECODABLE):
            return _Record(self._there.where, {})
        return record if record.url == self._there.where else _Record(self._there.where, {})

    def _write(self) -> None:
        private_files.replace(self._folder.path / NAME, msgspec.json.encode(self._record))


class Shares(NamedTuple):
    """Files to copy, grouped by server, each with its size in bytes."""

    of: dict[str, tuple[tuple[str, int], ...]]
    missing: tuple[str, ...]
    """Files that are missing on all servers."""


def is_of_server(manifest: Manifest, file: File) -> bool:
    """Return True if no copy of the file is in the job's folder, so that a server must copy it."""
    return all(folder_of(name) in manifest.apart for name in (file.name, file.mirror) if name)


def shares(manifest: Manifest, lacking: Collection[str]) -> Shares:
    """Assign each file to the server that wrote the file, or to that server's buddy if the file is missing on the
    server.
    """
    of: dict[str, list[tuple[str, int]]] = {}
    missing: list[str] = []
    for file in manifest.files:
        if not is_of_server(manifest, file):
            continue
        names = [name for name in (file.name, file.mirror) if name]
        copy = next((name for name in names if name not in lacking), None)
        if copy is None:
            missing.append(file.name)
        else:
            of.setdefault(folder_of(copy), []).append((copy, file.size))
    return Shares({server: tuple(files) for server, files in of.items()}, tuple(missing))


class Uploaded(msgspec.Struct, frozen=True):
    """The result of an upload."""

    number: int = 0
    url: str = ""
    files: int = 0
    bytes: int = 0
    """Number of bytes sent. Files that were already present do not count."""
    seconds: float = 0.0
    error: str = ""
    lacks: tuple[str, ...] = ()
    """Files that are missing in a server's folder, or incomplete."""


def upload(folder: pathlib.Path, url: str, number: int, claim: RunClaim, *, keep: int) -> Uploaded:
    began = time.monotonic()
    here, there = FolderStore(folder), UrlStore(url)
    claims.take(there, claim, option="--checkpoint-url")
    mirrored = checkpoint_io.known(here, number, lineage=Lineage(claim.run))
    manifest = without_mirrors(mirrored)
    sent = SentFiles(folder, there)
    for source, file in zip(mirrored.files, manifest.files, strict=True):
        if is_of_server(mirrored, source):
            # a server reported that it sent this file, so check the file's size at the URL
            if (size := there.size(file.name)) != file.size:
                raise errors.BadInput(f"{file.name} is not at {there.where}: {size or 0} of {file.size} bytes")
        else:
            sent.send(folder / checkpoint_io.whole_copy(here, source), file.name, file.size)
    claims.take(there, claim, option="--checkpoint-url")  # check again, because the upload may have taken hours
    checkpoint_io.publish(there, manifest)
    kept = kept_at(there, manifest, keep)
    checkpoint_io.drop_unneeded(there, kept)
    sent.forget_others({file.name for kept_manifest in kept for file in kept_manifest.files})
    return Uploaded(number, url, sent.files, sent.bytes, time.monotonic() - began)


def kept_at(there: UrlStore, newest: Manifest, keep: int) -> list[Manifest]:
    """Return the manifests that stay at the URL: the newest manifest, and readable manifests before it."""
    kept = [newest]
    for number in checkpoint_io.numbers(there):
        if number < newest.number and len(kept) < keep:
            try:
                kept.append(checkpoint_io.read(there, number))
            except (errors.BadInput, OSError):  # this manifest is unusable, so continue with the next one
                continue
    return kept


def send_part(folder: pathlib.Path, url: str, wanted: Sequence[tuple[str, int]]) -> Uploaded:
    """Send segment files of one server. The files have no effect until the master publishes a manifest that lists
    them."""
    here, there = FolderStore(folder), UrlStore(url)
    if not wanted:
        return Uploaded()
    lacks = [name for name, length in wanted if (here.size(name) or 0) < length]
    sent = SentFiles(folder / folder_of(wanted[0][0]), there)
    for name, length in wanted:
        if name not in lacks:
            sent.send(folder / name, bare(name), length)
    return Uploaded(files=sent.files, bytes=sent.bytes, lacks=tuple(lacks))


def gather(folder: pathlib.Path, number: int, claim: RunClaim, scattered: FileStore) -> Uploaded:
    """Fetch missing files into the run's folder, publish the manifest again, and delete files that the manifest does
    not need."""
    began, here = time.monotonic(), FolderStore(folder)
    manifest = checkpoint_io.known(here, number, lineage=Lineage(claim.run))
    whole = without_mirrors(manifest)
    files = size = 0
    for source, file in zip(manifest.files, whole.files, strict=True):
        if here.size(file.name) != file.size:
            _fetch(scattered, checkpoint_io.whole_copy(scattered, source), here, file)
            files, size = files + 1, size + file.size
    claims.take(here, claim)
    checkpoint_io.publish(here, whole)
    checkpoint_io.drop_unneeded(here, [whole])
    return Uploaded(number, str(folder), files, size, time.monotonic() - began)


def _fetch(place: FileStore, name: str, here: FolderStore, file: File) -> None:
    with here.create(file.name) as target:
        while (at := target.tell()) < file.size:
            content = place.read(name, at, min(FETCH_BYTES, file.size - at))
            if not content:
                raise errors.BadInput(f"{name} ends after {at} of {file.size} bytes")
            target.write(content)
            ANSWERS.note()


def _gather_from_servers(folder: str, number: str, addresses: str, claim: str) -> Uploaded:
    from springtide.checkpoint.transfer.file_transfer import ScatteredStore
    from springtide.rpc.messages.checkpoints import FileHolders

    settings = config.load()
    known = FileHolders((int(number),), msgspec.json.decode(addresses, type=dict[str, str]))
    secret = config.job_secret(settings)
    place = ScatteredStore(folder, pathlib.Path(folder), lambda _: known, secret, certificates=settings.tls)
    with contextlib.closing(place):
        return gather(pathlib.Path(folder), int(number), msgspec.json.decode(claim, type=RunClaim), place)


def run(what: str, arguments: Sequence[str]) -> Uploaded:
    match what, *arguments:
        case "upload", folder, url, number, keep, claim:
            mine = msgspec.json.decode(claim, type=RunClaim)
            return upload(pathlib.Path(folder), url, int(number), mine, keep=int(keep))
        case "part", folder, url, files:
            return send_part(pathlib.Path(folder), url, msgspec.json.decode(files, type=list[tuple[str, int]]))
        case "gather", folder, number, addresses, claim:
            return _gather_from_servers(folder, number, addresses, claim)
    raise errors.BadInput(f"unknown upload command: {what} with {len(arguments)} arguments")


def main(arguments: list[str]) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICE)
    end_when_silent(lambda why: msgspec.json.encode(Uploaded(error=why)).decode())
    try:
        done = run(arguments[0], arguments[1:])
    except Exception as error:  # stores raise many kinds of errors; the master reports all of them
        done = Uploaded(error=f"{type(error).__name__}: {error}")
    print(msgspec.json.encode(done).decode(), flush=True)
    return 1 if done.error else 0


def _end_with_parent() -> None:
    """Exit when stdin closes, because the parent has the other end of the pipe."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(config.own_arguments(sys.argv[1:])))
