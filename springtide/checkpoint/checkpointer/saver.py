"""The trainer's queue of saves, and the process that writes them to storage even if the trainer is killed. No torch.

`python -m springtide.checkpoint.checkpointer.saver URL FOLDER KEEP` reads one JSON line for each image from stdin. A
save exists only if its manifest, which is written last, exists. If stdin ends without the final message, the saver
still writes the last image.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, BinaryIO

import msgspec

from springtide import config, errors
from springtide.checkpoint.format.storage import UrlStore
from springtide.domain.core.validation import UNDECODABLE

MAGIC = b"SPTSTATE"
VERSION = 1
HEAD = struct.Struct("<8sIIQQqI16sI")
BYTES = HEAD.size
assert BYTES == 64


class ImageHead(msgspec.Struct, frozen=True):
    """Header of an image. `sequence` numbers the saves across restarts; `step` is the number that the user gave."""

    index_bytes: int
    image_bytes: int
    sequence: int
    step: int
    index_crc: int


def encode_head(head: ImageHead) -> bytes:
    fields = (MAGIC, VERSION, head.index_bytes, head.image_bytes, head.sequence, head.step, head.index_crc, b"")
    bare = HEAD.pack(*fields, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def decode_head(data: bytes) -> ImageHead:
    if len(data) < BYTES or data[:8] != MAGIC:
        raise errors.BadInput(f"not a saved state: it begins with {bytes(data[:8])!r}, expected {MAGIC!r}")
    _, version, index_bytes, image_bytes, sequence, step, index_crc, _, crc = HEAD.unpack_from(data)
    if crc != zlib.crc32(data[: BYTES - 4]):
        raise errors.BadInput("a saved state with a damaged head")
    if version != VERSION:
        raise errors.OtherVersion("the saved state", version, VERSION)
    return ImageHead(index_bytes, image_bytes, sequence, step, index_crc)


log = logging.getLogger(__name__)

NAMES = ("a.image", "b.image")
SHARED = pathlib.Path("/dev/shm")
POLL_S = 0.05


def folder_for(url: str, chosen: str | os.PathLike[str] | None) -> pathlib.Path:
    """Return the folder for a URL and user. A relaunched process gets the same folder."""
    root = pathlib.Path(chosen) if chosen else (SHARED if SHARED.is_dir() else pathlib.Path(tempfile.gettempdir()))
    return root / f"springtide-{os.getuid()}" / hashlib.sha256(url.encode()).hexdigest()[:16]


def read_head(path: pathlib.Path) -> ImageHead | None:
    try:
        with open(path, "rb") as file:
            head = decode_head(file.read(BYTES))
            return head if os.fstat(file.fileno()).st_size >= head.image_bytes else None
    except (OSError, errors.BadInput):
        return None


def whole_images(folder: pathlib.Path) -> list[tuple[ImageHead, pathlib.Path]]:
    images = [(head, folder / name) for name in NAMES if (head := read_head(folder / name))]
    return sorted(images, key=lambda image: -image[0].sequence)


def lock(folder: pathlib.Path, *, within_s: float) -> int:
    """Lock the folder for writing, and return the descriptor. A child process that inherits the descriptor also holds
    the lock.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + within_s
    logged = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise errors.BadInput(
                f"another process saves to this URL ({folder} was locked for {within_s:g} s). "
                "Use a separate URL for each process, such as URL/rank-0."
            )
        if not logged:
            log.info("waiting for the saver of an earlier process, which still writes to this URL")
            logged = True
        time.sleep(POLL_S)


NAME = re.compile(r"(?P<stem>(?P<sequence>\d{8,})-step(?P<step>-?\d+))\.(?P<ending>json|state)(?P<part>\.part)?")


class StateManifest(msgspec.Struct, frozen=True):
    """Description of one saved state."""

    format: int
    sequence: int
    step: int
    bytes: int
    crc: int
    """CRC-32 of the whole image."""
    saved_at: float
    """Seconds since 1970."""

    @property
    def stem(self) -> str:
        return stem(self.sequence, self.step)


def stem(sequence: int, step: int) -> str:
    """Return the file stem of a save. Stems sort in the order of saves."""
    return f"{sequence:08d}-step{step}"


class StateStore:
    """Saved states at one URL."""

    def __init__(self, url: str) -> None:
        self.place = UrlStore(url)
        self.url = url

    @property
    def identity(self) -> str:
        """Return the same identity for every spelling of this URL."""
        return os.path.abspath(self.place.local_root) if self.place.local_root else self.url

    def publish(self, image: pathlib.Path, head: ImageHead) -> StateManifest:
        name = stem(head.sequence, head.step)
        crc = self.place.put(image, f"{name}.state", head.image_bytes)
        manifest = StateManifest(VERSION, head.sequence, head.step, head.image_bytes, crc, time.time())
        self.place.write(f"{name}.json", msgspec.json.encode(manifest))
        return manifest

    def manifests(self) -> list[StateManifest]:
        """Return published saves, newest first, without `damaged` saves."""
        manifests = [manifest for _, manifest in self._read() if manifest is not None]
        return sorted(manifests, key=lambda manifest: -manifest.sequence)

    def damaged(self) -> list[tuple[int, int]]:
        """Return sequence and step, from the file names, of saves with an unreadable manifest."""
        return [(int(known["sequence"]), int(known["step"])) for known, manifest in self._read() if manifest is None]

    def _read(self) -> Iterator[tuple[re.Match[str], StateManifest | None]]:
        for name in self.place.names():
            if (known := NAME.fullmatch(name)) and known["ending"] == "json" and not known["part"]:
                with contextlib.suppress(OSError):  # another process deleted the file in the meantime
                    content = self.place.read(name)
                    try:
                        yield known, msgspec.json.decode(content, type=StateManifest)
                    except UNDECODABLE:
                        yield known, None

    def open(self, manifest: StateManifest) -> BinaryIO:
        return self.place.open(f"{manifest.stem}.state")

    def keep_newest(self, count: int) -> None:
        for manifest in self.manifests()[count:]:
            for ending in ("json", "state"):
                self.place.remove(f"{manifest.stem}.{ending}")

    def clear_leftovers(self) -> None:
        """Remove partial files of a killed saver. Only the holder of the lock may call this method."""
        names = set(self.place.names())
        for name in names:
            known = NAME.fullmatch(name)
            if known and (known["part"] or (known["ending"] == "state" and f"{known['stem']}.json" not in names)):
                self.place.remove(name)


GOODBYE = b"goodbye\n"


class ImageRequest(msgspec.Struct, frozen=True):
    """Request to write one image to storage for one save."""

    image: str
    sequence: int


class SaveReply(msgspec.Struct, frozen=True):
    """Outcome of a save. Without an error, the save is published and only the newest `keep` saves remain."""

    sequence: int
    error: str = ""


class ImageSaver:
    """Publishes images to storage, one at a time. For storage that no other process can see (memory://), the trainer
    uses this class in its own process.
    """

    def __init__(self, url: str, folder: pathlib.Path, keep: int) -> None:
        self.storage = StateStore(url)
        self.folder = folder
        self.keep = keep
        self.last = 0

    def save(self, request: ImageRequest) -> SaveReply:
        """Publish the image and delete old saves. Never raises for a disk or network error."""
        path = self.folder / request.image
        head = read_head(path)
        if head is None or head.sequence != request.sequence:
            return SaveReply(request.sequence, f"{path} no longer contains this save")
        try:
            self.storage.publish(path, head)
            self.last = head.sequence
            self.storage.keep_newest(self.keep)
        except (OSError, errors.SpringtideError) as error:
            with contextlib.suppress(OSError):
                self.storage.clear_leftovers()  # remove the partial file, because it must not fill the disk
            return SaveReply(request.sequence, f"could not write to {self.storage.url}: {error}")
        return SaveReply(request.sequence)

    def stop(self) -> None:
        """Do nothing, because this saver is a part of the trainer's process."""

    def save_newest(self) -> None:
        """Publish the last complete image after the trainer's death, if it is not published yet."""
        known = max([self.last, *(manifest.sequence for manifest in self.storage.manifests())])
        for head, path in whole_images(self.folder)[:1]:
            if head.sequence > known:
                self.save(ImageRequest(path.name, head.sequence))


ATTEMPTS = 3
"""Number of saver processes that may die while writing one image, before the save fails."""


class Outcome(StrEnum):
    """State of a save."""

    PENDING = "pending"
    """The save is complete in memory, but not in storage yet."""
    PERSISTED = "persisted"
    SUPERSEDED = "superseded"
    """A later save replaced this save before the saver wrote it."""
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Save:
    """One save. The state is in memory as soon as `save` returns this object. The outcome in storage follows later."""

    step: int
    sequence: int
    image: str
    bytes: int
    outcome: Outcome = Outcome.PENDING
    error: str = ""
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until the save has ended or the timeout expires. After a timeout, the outcome is still PENDING."""
        self._over.wait(timeout_s)
        return self.outcome

    def end(self, outcome: Outcome, error: str = "") -> None:
        self.outcome, self.error = outcome, error
        if error:
            log.error("the save of step %d exists in memory only: %s", self.step, error)
        self._over.set()


class SaverFailed(errors.TemporaryError):
    """A saver process died before it finished its work."""


class SaverProcess:
    """A saver process, which outlives the trainer long enough to finish its saves."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int, lock: int) -> None:
        self._command = [sys.executable, "-m", __name__]
        self._arguments = [url, str(folder), str(keep)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    def save(self, request: ImageRequest) -> SaveReply:
        """Let the saver write the image. Raise SaverFailed if the saver dies."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the saver process ended with status %d; starting another one", self._reap())
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._lock],
                env=config.with_arguments(self._arguments),
                start_new_session=True,  # start a new session, so that Ctrl-C reaches only the trainer
            )
        try:
            _pipe(self._process.stdin).write(msgspec.json.encode(request) + b"\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise SaverFailed(f"the saver process ended with status {self._reap()}")
        return msgspec.json.decode(line, type=SaveReply)

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                _pipe(self._process.stdin).write(GOODBYE)
                _pipe(self._process.stdin).flush()
            self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()
        status = self._process.wait()
        self._process = None
        return status


class SaveQueue:
    """Queue with a thread that passes images to a saver, one at a time."""

    def __init__(self, saver: "SaverProcess | ImageSaver") -> None:
        self._saver = saver
        # the code enters this lock directly, because an interrupt within Condition.__enter__ would leave the lock held
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._waiting: Save | None = None
        self._writing: Save | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="springtide saver", daemon=True)
        self._thread.start()
        self.pid = os.getpid()

    def free_image(self, images: tuple[str, ...], newest: str, *, supersede: bool) -> str:
        """Return an image that may be overwritten: neither the newest complete image nor the image being written.

        If both images are in use, wait until the older one is written to storage. With `supersede`, replace the waiting
        image instead.
        """
        with self._lock:
            while self._waiting is not None:
                if supersede and self._writing is not None:
                    self._waiting.end(Outcome.SUPERSEDED)
                    image, self._waiting = self._waiting.image, None
                    return image
                self._change.wait()  # wait until the saver has begun to write the queued save
            free = [image for image in images if self._writing is None or image != self._writing.image]
            return next((image for image in free if image != newest), free[0])

    def submit(self, save: Save) -> None:
        with self._lock:
            assert self._waiting is None, "another image is being filled"
            self._waiting = save
            self._change.notify_all()

    def wait(self) -> None:
        with self._lock:
            self._change.wait_for(lambda: self._waiting is None and self._writing is None)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        self._saver.stop()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._change.wait_for(lambda: self._waiting is not None or self._closing)
                if self._waiting is None:
                    return
                self._writing, self._waiting = self._waiting, None
                self._change.notify_all()
            error = self._persist(self._writing)
            self._writing.end(Outcome.FAILED if error else Outcome.PERSISTED, error)
            with self._lock:
                self._writing = None
                self._change.notify_all()

    def _persist(self, save: Save) -> str:
        """Write a save to storage. Return an error text, or an empty text on success."""
        request = ImageRequest(save.image, save.sequence)
        error = ""
        for _ in range(ATTEMPTS):
            try:
                return self._saver.save(request).error
            except (SaverFailed, OSError) as failure:
                error = str(failure)
                log.warning("%s; trying the save of step %d again", error, save.step)
        return f"{error}, {ATTEMPTS} times"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def main() -> int:
    url, folder, keep = config.own_arguments(sys.argv[1:])
    saver = ImageSaver(url, pathlib.Path(folder), int(keep))
    saver.storage.clear_leftovers()
    for line in sys.stdin.buffer:
        if line == GOODBYE:
            return 0
        answer = saver.save(msgspec.json.decode(line, type=ImageRequest))
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            break
    saver.save_newest()
    return 0


if __name__ == "__main__":
    sys.exit(main())
