"""The saver process: write images from memory to storage, also after the trainer was killed. Free of torch.

In: one JSON line for each request on stdin (`python -m springtide.checkpoint.checkpointer.state_saver URL FOLDER
KEEP`). Out: one line for each request on stdout. If stdin ends without a goodbye, the trainer has died, and the saver
still writes its last image. Next: checkpoint/checkpointer/state_storage.py.
"""

import pathlib
import sys

import msgspec

from springtide import config, errors
from springtide.checkpoint.checkpointer import state_folder
from springtide.checkpoint.checkpointer.state_storage import StateStore

GOODBYE = b"goodbye\n"


class ImageRequest(msgspec.Struct, frozen=True):
    """Asks the saver to write this image for this save."""

    image: str
    sequence: int


class SaveReply(msgspec.Struct, frozen=True):
    """Outcome of a save. Without an error, the save is published and only the newest `keep` saves remain."""

    sequence: int
    error: str = ""


class ImageSaver:
    """Publishes images, one at a time."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int) -> None:
        self.storage = StateStore(url)
        self.folder = folder
        self.keep = keep
        self.last = 0

    def save(self, request: ImageRequest) -> SaveReply:
        """Publish the image and delete old saves. Never raises for a disk or network error."""
        path = self.folder / request.image
        head = state_folder.read_head(path)
        if head is None or head.sequence != request.sequence:
            return SaveReply(request.sequence, f"{path} does not hold this save any more")
        try:
            self.storage.publish(path, head)
            self.last = head.sequence
            self.storage.keep_newest(self.keep)
        except (OSError, errors.SpringtideError) as error:
            self._clear_quietly()
            return SaveReply(request.sequence, f"could not write to {self.storage.url}: {error}")
        return SaveReply(request.sequence)

    def _clear_quietly(self) -> None:
        try:
            self.storage.clear_leftovers()  # a partial file must not fill the disk
        except OSError:
            return

    def save_newest(self) -> None:
        """Publish the last complete image after the trainer's death, if it is not published yet."""
        known = max([self.last, *(manifest.sequence for manifest in self.storage.manifests())])
        for head, path in state_folder.whole_images(self.folder)[:1]:
            if head.sequence > known:
                self.save(ImageRequest(path.name, head.sequence))


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
