"""The saver: writes images from memory to storage while training goes on, and after it if it was killed. Free of torch.

In: one JSON line a request on stdin (`python -m springtide.checkpoint.checkpointer.state_saver URL FOLDER KEEP`). Out:
one line a request on stdout. When stdin ends without a goodbye the trainer has died: what it had saved last is written
still. Next: checkpoint/checkpointer/state_storage.py.
"""

import pathlib
import sys

import msgspec

from springtide import config, errors
from springtide.checkpoint.checkpointer import state_folder
from springtide.checkpoint.checkpointer.state_storage import Storage

GOODBYE = b"goodbye\n"


class Request(msgspec.Struct, frozen=True):
    """Write this image; it is that save."""

    image: str
    sequence: int


class Answer(msgspec.Struct, frozen=True):
    """What became of it; no error: it is published, and older ones than `keep` are gone."""

    sequence: int
    error: str = ""


class Saver:
    """Publishes one image at a time."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int) -> None:
        self.storage = Storage(url)
        self.folder = folder
        self.keep = keep
        self.last = 0

    def save(self, request: Request) -> Answer:
        """Publish, thin out, answer. Never raises for what a disk or a network may do."""
        path = self.folder / request.image
        head = state_folder.read_head(path)
        if head is None or head.sequence != request.sequence:
            return Answer(request.sequence, f"{path} does not hold this save any more")
        try:
            self.storage.publish(path, head)
            self.last = head.sequence
            self.storage.keep_newest(self.keep)
        except (OSError, errors.SpringtideError) as error:
            self._clear_quietly()
            return Answer(request.sequence, f"could not write to {self.storage.url}: {error}")
        return Answer(request.sequence)

    def _clear_quietly(self) -> None:
        try:
            self.storage.clear_leftovers()  # half a file must not fill what is left of the disk
        except OSError:
            return

    def save_newest(self) -> None:
        """The trainer is gone: publish its last whole image unless that has been done."""
        known = max([self.last, *(manifest.sequence for manifest in self.storage.manifests())])
        for head, path in state_folder.whole_images(self.folder)[:1]:
            if head.sequence > known:
                self.save(Request(path.name, head.sequence))


def main() -> int:
    """Serve one trainer until it says goodbye or dies."""
    url, folder, keep = config.own_arguments(sys.argv[1:])
    saver = Saver(url, pathlib.Path(folder), int(keep))
    saver.storage.clear_leftovers()
    for line in sys.stdin.buffer:
        if line == GOODBYE:
            return 0
        answer = saver.save(msgspec.json.decode(line, type=Request))
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            break
    saver.save_newest()
    return 0


if __name__ == "__main__":
    sys.exit(main())
