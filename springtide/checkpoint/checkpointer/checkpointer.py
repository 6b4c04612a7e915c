"""Saves of any PyTorch program: the caller waits for one copy into memory, storage is written behind its back.

In: a URL of fsspec's, steps and state dicts. Out: `Save`s that say what became of them; `Loaded` states, from memory
when the newest is there, else from storage. No tables and no job are needed. docs/checkpointer.md is for users.

    checkpointer = springtide.checkpoint.Checkpointer("runs/ctr")
    if found := checkpointer.load():
        model.load_state_dict(found.state["model"])
    for step in range(found.step + 1 if found else 0, steps):
        ...
        checkpointer.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    checkpointer.close()
"""

import concurrent.futures
import logging
import os
import threading
from dataclasses import dataclass
from typing import Any, Literal, Self

from springtide import errors
from springtide.checkpoint.checkpointer import state_folder, state_image, state_memory, state_saving
from springtide.checkpoint.checkpointer.state_saving import Outcome, Save
from springtide.checkpoint.checkpointer.state_storage import Manifest, Storage
from springtide.domain.core.plain_numbers import takes_numbers

log = logging.getLogger(__name__)

COPY_THREADS = 4
LOCK_WITHIN_S = 60.0

__all__ = ["Checkpointer", "Loaded", "Outcome", "Save"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state found. Its tensors are the caller's own: no later save changes them."""

    step: int
    state: Any
    source: Literal["memory", "storage"]
    skipped: tuple[str, ...] = ()
    """Newer saves that could not be used, and why; logged as well."""


class Checkpointer:
    """Saves and loads the states of one process at one URL. Safe to use from several threads of it."""

    @takes_numbers("self")
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int = 3,
        when_busy: Literal["wait", "supersede"] = "wait",
        memory: str | os.PathLike[str] | None = None,
    ) -> None:
        """`keep` saves stay in storage. A third save while two are not written yet waits for one of them, or takes the
        place of the second, which is told so. `memory` is the folder for the two images: shared memory by default.
        """
        if keep < 1:
            raise errors.BadInput(f"keep={keep}: wanted 1 or more saves to keep")
        if when_busy not in ("wait", "supersede"):
            raise errors.UnknownName("answer to a busy saver", when_busy, ("wait", "supersede"))
        self._storage = Storage(os.fspath(url))
        self._storage.place.make()
        self.folder = state_folder.folder_for(self._storage.identity, memory)
        self._keep = keep
        self._supersede = when_busy == "supersede"
        self._turn = threading.Lock()
        self._saving: state_saving.Saving | None = None
        self._lock = -1
        self._copiers: concurrent.futures.ThreadPoolExecutor | None = None
        self._threads = min(COPY_THREADS, os.cpu_count() or 1)
        self._images = {name: state_memory.ImageFile(self.folder / name) for name in state_folder.NAMES}
        self._sequence = 0
        self._newest = ""
        self._closed = False

    @takes_numbers("self", "state_dict")
    def save(self, step: int, state_dict: Any) -> Save:
        """Copy the state into memory and return; it is written to storage meanwhile. The `Save` says how that ended.

        BadInput names what in the state cannot be saved; DiskFull when memory has no room. Nothing is lost by either.
        """
        if not isinstance(step, int) or isinstance(step, bool):
            raise errors.BadInput(f"step={step!r}: wanted a whole number")
        with self._turn:
            saving = self._begin()
            plan = state_image.plan(state_dict, step=step, sequence=self._sequence + 1)
            image = saving.free_image(state_folder.NAMES, self._newest, supersede=self._supersede)
            assert self._copiers is not None
            self._images[image].fill(plan, self._copiers, self._threads)
            first, self._newest = not self._newest, image
            self._sequence += 1
            save = Save(step, self._sequence, image, plan.head.image_bytes)
            saving.submit(save)
        if first:
            threading.Thread(target=self._touch_other, args=(save,), daemon=True).start()
        return save

    @takes_numbers("self")
    def load(self, step: int | None = None) -> Loaded | None:
        """The newest state that is whole, or that of one step; None when nothing was ever saved here."""
        skipped: list[str] = []
        manifests = self._storage.manifests()
        for sequence, one, source in self._candidates(manifests, step):
            try:
                state = source(sequence)
            except (OSError, errors.BadInput) as error:
                skipped.append(f"step {one}: {error}")
                log.warning("the save of step %d cannot be used, taking the one before: %s", one, error)
                continue
            where: Literal["memory", "storage"] = "memory" if source == self._from_memory else "storage"
            return Loaded(one, state, where, tuple(skipped))
        known = sorted({manifest.step for manifest in manifests})
        if step is not None and not skipped:
            raise errors.MissingFile(f"no save of step {step} at {self._storage.url}; steps there: {known or 'none'}")
        if skipped:
            raise errors.BadInput(f"nothing at {self._storage.url} can be loaded: {'; '.join(skipped)}")
        return None

    def saved(self) -> list[Manifest]:
        """What is in storage, newest first."""
        return self._storage.manifests()

    def wait(self) -> None:
        """Block until every save so far has ended."""
        if self._saving:
            self._saving.wait()

    def close(self) -> None:
        """Wait for the saves, end the saver, let go of the memory. The newest image stays for a later process."""
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

    def _begin(self) -> state_saving.Saving:
        """On the first save: the right to write, the saver, and where the numbering stands."""
        if self._closed:
            raise errors.BadInput("this checkpointer is closed; make another one")
        if self._saving is not None:
            if self._saving.pid != os.getpid():
                raise errors.BadInput(
                    "a forked process cannot save with its parent's checkpointer; make one of its own"
                )
            return self._saving
        self._lock = state_folder.lock(self.folder, within_s=LOCK_WITHIN_S)
        in_memory = state_folder.whole_images(self.folder)
        known = [manifest.sequence for manifest in self._storage.manifests()]
        self._sequence = max([0, *known, *(head.sequence for head, _ in in_memory)])
        self._newest = in_memory[0][1].name if in_memory else ""
        self._copiers = concurrent.futures.ThreadPoolExecutor(self._threads, "springtide copy")
        url = self._storage.url
        saver: state_saving.SaverProcess | state_saving.SaverThread
        if self._storage.place.in_this_process:
            saver = state_saving.SaverThread(url, self.folder, self._keep)
        else:
            saver = state_saving.SaverProcess(url, self.folder, self._keep, self._lock)
        self._saving = state_saving.Saving(saver)
        return self._saving

    def _candidates(self, manifests: list[Manifest], step: int | None) -> list[tuple[int, int, Any]]:
        """Every save that may be read, newest first; from memory before the same one from storage."""
        found = [(head.sequence, head.step, self._from_memory) for head, _ in state_folder.whole_images(self.folder)]
        found += [(manifest.sequence, manifest.step, self._from_storage) for manifest in manifests]
        found += [(sequence, damaged, self._from_nowhere) for sequence, damaged in self._storage.damaged()]
        found.sort(key=lambda one: (-one[0], one[2] != self._from_memory))
        return [one for one in found if step is None or one[1] == step]

    def _from_memory(self, sequence: int) -> Any:
        for head, path in state_folder.whole_images(self.folder):
            if head.sequence == sequence:
                with open(path, "rb") as file:
                    state = state_image.read(file, summed=False)[1]  # a head is written only once the rest is there
                if state_folder.read_head(path) == head:
                    return state
        raise errors.BadInput("its image in memory was overwritten by a later save")

    def _from_storage(self, sequence: int) -> Any:
        manifest = next(one for one in self._storage.manifests() if one.sequence == sequence)
        with self._storage.open(manifest) as file:
            head, state, crc = state_image.read(file)
        if (head.image_bytes, crc) != (manifest.bytes, manifest.crc):
            raise errors.BadInput(f"{manifest.stem}.state has another checksum than its manifest: torn, or changed")
        return state

    def _from_nowhere(self, sequence: int) -> Any:
        raise errors.BadInput(f"the manifest of save {sequence} is damaged")

    def _touch_other(self, first: Save) -> None:
        """Make the second image ready, so that only the first save pays for new pages."""
        with self._turn:
            if self._closed or self._sequence != first.sequence:
                return  # the next save was quicker, and both images may be on their way to storage
            other = next(name for name in state_folder.NAMES if name != first.image)
            try:
                self._images[other].touch(first.bytes)
            except errors.DiskFull as error:
                log.warning("%s", error)
