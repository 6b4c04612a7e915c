"""Save any PyTorch state: the caller waits for one copy into memory, and a saver writes that copy to storage.

In: an fsspec URL, steps and state dicts. Out: each `Save` with its outcome, and `Loaded` states. A state is read from
memory if the newest state is there, and otherwise from storage. The checkpointer needs neither tables nor a job. Users
read docs/how-to/checkpointer.md.
"""

import concurrent.futures
import functools
import logging
import os
import pathlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from springtide import errors
from springtide.checkpoint.checkpointer import saver, state_image
from springtide.checkpoint.checkpointer.saver import Save, StateManifest, StateStore
from springtide.domain.core.validation import takes_numbers

log = logging.getLogger(__name__)

COPY_THREADS = 4
LOCK_WITHIN_S = 60.0

Source = Literal["memory", "storage"]
Read = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded state. The tensors of the returned state belong to the caller, so later saves do not change these
    tensors.
    """

    step: int
    state: Any
    source: Source
    skipped: tuple[str, ...] = ()
    """Newer saves that `load` could not use, with the reasons; `load` also logs them."""


class Checkpointer:
    """Saves and loads the states of one process at one URL. Thread-safe."""

    @takes_numbers("self")
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int = 3,
        when_busy: Literal["wait", "supersede"] = "wait",
        memory: str | os.PathLike[str] | None = None,
    ) -> None:
        """Storage keeps the newest `keep` saves. If two saves are not written yet, `when_busy` says whether a third
        save waits for the first or replaces the second. `memory` is the folder for the two images in memory; the
        default is in shared memory.
        """
        if keep < 1:
            raise errors.BadInput(f"keep={keep}: expected 1 or more saves to keep")
        if when_busy not in ("wait", "supersede"):
            raise errors.UnknownName("answer to a busy saver", when_busy, ("wait", "supersede"))
        self._storage = StateStore(os.fspath(url))
        self._storage.place.make()
        self.folder = saver.folder_for(self._storage.identity, memory)
        self._keep = keep
        self._supersede = when_busy == "supersede"
        self._turn = threading.Lock()
        self._saving: saver.SaveQueue | None = None
        self._lock = -1
        self._copiers: concurrent.futures.ThreadPoolExecutor | None = None
        self._threads = min(COPY_THREADS, os.cpu_count() or 1)
        self._images = {name: state_image.ImageFile(self.folder / name) for name in saver.NAMES}
        self._sequence = 0
        self._newest = ""
        self._closed = False

    @takes_numbers("self", "state_dict")
    def save(self, step: int, state_dict: Any) -> Save:
        """Copy the state into memory and return. The saver writes the state to storage, and the `Save` gets the
        outcome.

        Raises BadInput if a part of the state cannot be saved, and DiskFull if the image does not fit into memory.
        Earlier saves stay intact.
        """
        if not isinstance(step, int) or isinstance(step, bool):
            raise errors.BadInput(f"step={step!r}: expected a whole number")
        with self._turn:
            saving = self._begin()
            plan = state_image.plan_image(state_dict, step=step, sequence=self._sequence + 1)
            image = saving.free_image(saver.NAMES, self._newest, supersede=self._supersede)
            assert self._copiers is not None
            self._images[image].fill(plan, self._copiers, self._threads)
            self._newest = image
            self._sequence += 1
            save = Save(step, self._sequence, image, plan.head.image_bytes)
            saving.submit(save)
        return save

    @takes_numbers("self")
    def load(self, step: int | None = None) -> Loaded | None:
        """Load the newest intact state, or the state of one step. Return None if this URL has no saved state."""
        skipped: list[str] = []
        manifests = self._storage.manifests()
        for saved_step, source, read in self._candidates(manifests, step):
            try:
                state = read()
            except (OSError, errors.BadInput) as error:
                skipped.append(f"step {saved_step}: {error}")
                log.warning("cannot load the save of step %d, loading an older one: %s", saved_step, error)
                continue
            return Loaded(saved_step, state, source, tuple(skipped))
        known = sorted({manifest.step for manifest in manifests})
        if step is not None and not skipped:
            raise errors.MissingFile(f"no save of step {step} at {self._storage.url}; steps there: {known or 'none'}")
        if skipped:
            raise errors.BadInput(f"cannot load any save at {self._storage.url}: {'; '.join(skipped)}")
        return None

    def saved(self) -> list[StateManifest]:
        """Return the manifests in storage, newest first."""
        return self._storage.manifests()

    def wait(self) -> None:
        """Block until every save so far has ended."""
        if self._saving:
            self._saving.wait()

    def close(self) -> None:
        """Wait for the saves, stop the saver, and release the memory. The newest image stays for a later process."""
        with self._turn:
            self._closed = True
            if self._saving:
                self._saving.close()
                self._saving = None
                os.close(self._lock)
            if self._copiers:
                self._copiers.shutdown()
            for image in self._images.values():
                image.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> saver.SaveQueue:
        """On the first save: take the lock, start the saver, and find the last sequence number."""
        if self._closed:
            raise errors.BadInput("this checkpointer is closed; create another one")
        if self._saving is not None:
            if self._saving.pid != os.getpid():
                raise errors.BadInput("a forked process cannot use its parent's checkpointer; create another one there")
            return self._saving
        self._lock = saver.lock(self.folder, within_s=LOCK_WITHIN_S)
        in_memory = saver.whole_images(self.folder)
        known = [manifest.sequence for manifest in self._storage.manifests()]
        self._sequence = max([0, *known, *(head.sequence for head, _ in in_memory)])
        self._newest = in_memory[0][1].name if in_memory else ""
        self._copiers = concurrent.futures.ThreadPoolExecutor(self._threads, "springtide copy")
        where = (self._storage.url, self.folder, self._keep)
        here = self._storage.place.in_this_process
        self._saving = saver.SaveQueue(saver.ImageSaver(*where) if here else saver.SaverProcess(*where, self._lock))
        return self._saving

    def _candidates(self, manifests: list[StateManifest], step: int | None) -> list[tuple[int, Source, Read]]:
        saves: list[tuple[int, int, Source, Read]] = [
            (head.sequence, head.step, "memory", functools.partial(self._from_memory, head, path))
            for head, path in saver.whole_images(self.folder)
        ]
        for manifest in manifests:
            saves.append((manifest.sequence, manifest.step, "storage", functools.partial(self._from_storage, manifest)))
        for sequence, damaged in self._storage.damaged():
            saves.append((sequence, damaged, "storage", functools.partial(_refuse_damaged, sequence)))
        saves.sort(key=lambda save: (-save[0], save[2]))
        return [(saved, source, read) for _, saved, source, read in saves if step is None or saved == step]

    def _from_memory(self, head: saver.ImageHead, path: pathlib.Path) -> Any:
        with open(path, "rb") as file:
            # read without a checksum: the header is written last, so an image with a header is complete
            state = state_image.read_image(file, summed=False)[1]
        if saver.read_head(path) != head:
            raise errors.BadInput("its image in memory was overwritten by a later save")
        return state

    def _from_storage(self, manifest: StateManifest) -> Any:
        with self._storage.open(manifest) as file:
            head, state, crc = state_image.read_image(file)
        if (head.image_bytes, crc) != (manifest.bytes, manifest.crc):
            raise errors.BadInput(f"{manifest.stem}.state is torn or was changed: its checksum is not the manifest's")
        return state


def _refuse_damaged(sequence: int) -> Any:
    raise errors.BadInput(f"the manifest of save {sequence} is damaged")
