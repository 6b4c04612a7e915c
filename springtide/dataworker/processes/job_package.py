"""Package a job's code and data set for data workers: a sealed pickle, with large arrays in a separate file.

In: a `Pipeline` with the user's objects. Out: a folder, and the same pipeline in another process. The reader first
checks the seal, an HMAC under the job's secret, so only a trainer of the same job can write the pickle. All data
workers of a host map the arrays copy-on-write, so the data set is in memory once.
"""

import contextlib
import hashlib
import hmac
import io
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import torch

from springtide import errors
from springtide.dataworker.feed.worker import Pipeline
from springtide.dataworker.processes.package_transfer import ARRAYS, CODE, CONTENTS, SEAL_BYTES
from springtide.domain.core.validation import FileVersion

FORMAT = 1
ALIGNMENT = 64
# arrays of at least this many bytes go into the separate file, because a smaller array is cheaper to copy than to map
OUT_OF_BAND = 1024


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """List of a package's contents, protected by the seal."""

    format: int
    code: bytes
    """SHA-256 of the pickle."""
    arrays: list[tuple[int, int]]
    """Offset and bytes of each array in the array file."""
    paths: list[str]
    """Python search paths for the user's modules."""


def write(folder: Path, pipeline: Pipeline, *, secret: bytes, paths: Sequence[str]) -> str:
    """Write the package and return its digest. A process that has loaded an older package keeps that package."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(folder, error) from error
    buffers: list[memoryview] = []
    code = _pickled(pipeline, buffers)
    places: list[tuple[int, int]] = []
    with _replacing(folder / ARRAYS) as file:
        for buffer in buffers:
            file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            places.append((file.tell(), buffer.nbytes))
            file.write(buffer)
    with _replacing(folder / CODE) as file:
        file.write(code)
    found = [os.path.abspath(path) for path in paths]
    contents = Contents(FORMAT, hashlib.sha256(code).digest(), places, found)
    listed = msgspec.msgpack.encode(contents)
    with _replacing(folder / CONTENTS) as file:
        file.write(hmac.digest(secret, listed, "sha256") + listed)
    return hashlib.sha256(listed).hexdigest()


def load(folder: Path, *, secret: bytes) -> Pipeline:
    """Load the pipeline, with its arrays mapped from the file. Raise BadInput if the seal does not match the secret."""
    contents = _checked(folder, secret)
    code = _read(folder / CODE)
    if not hmac.compare_digest(hashlib.sha256(code).digest(), contents.code):
        raise errors.BadInput(f"{folder / CODE} does not match its seal: it was changed, or is being rewritten")
    sys.path += [path for path in contents.paths if path not in sys.path]
    try:
        found = pickle.loads(code, buffers=_mapped(folder / ARRAYS, contents.arrays))
    except Exception as error:  # user classes may raise anything when they are unpickled
        raise errors.BadInput(
            f"cannot load the job's package from {folder}: {type(error).__name__}: {error}. Data workers need the "
            "modules that the training script imports, at the same paths"
        ) from error
    if not isinstance(found, Pipeline):
        raise errors.BadInput(f"{folder} holds a {type(found).__name__}: expected a Pipeline")
    return found


def unsendable(held: Any) -> str:
    """Return the reason why an object cannot be pickled; empty if it can be pickled.

    The check does not unpickle the object: cloudpickle would then redefine methods of the script's own classes.
    """
    try:
        cloudpickle.dumps(held)
    except Exception as error:  # user objects may raise anything when they are pickled
        return f"the state that a marked function reads cannot be pickled: {type(error).__name__}: {error}"
    return ""


def _checked(folder: Path, secret: bytes) -> Contents:
    sealed = _read(folder / CONTENTS)
    seal, listed = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
    if not hmac.compare_digest(seal, hmac.digest(secret, listed, "sha256")):
        raise errors.BadInput(f"{folder} was not written by this job: its seal does not match the job's secret")
    found = msgspec.msgpack.decode(listed, type=FileVersion).format
    if found not in (None, FORMAT):
        raise errors.OtherVersion(str(folder), found, FORMAT, "use one version of Springtide for all roles")
    return msgspec.msgpack.decode(listed, type=Contents)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise errors.MissingFile(f"no package at {path.parent}: {path.name} is missing") from None


def _mapped(path: Path, places: Sequence[tuple[int, int]]) -> list[memoryview]:
    if not places:
        return []
    with open(path, "rb") as file:
        end = max(offset + size for offset, size in places)
        if os.fstat(file.fileno()).st_size < end:
            raise errors.BadInput(f"{path} is cut short: expected {end} bytes")
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return [whole[offset : offset + size] for offset, size in places]


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """Open a new file that atomically replaces an old one. A process that has the old file open continues to read the
    old file."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _unwritable(path: Path, error: OSError) -> errors.DiskFull:
    return errors.DiskFull(f"the package for data workers cannot be written to {path}: {error}")


def _pickled(pipeline: Pipeline, buffers: list[memoryview]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, buffers).dump(pipeline)
    except Exception as error:  # user objects may raise anything when they are pickled
        raise errors.BadInput(
            f"the data set cannot be pickled for another process: {type(error).__name__}: {error}. Open "
            "files, locks and connections on first use in the process that uses them, or leave them out in __getstate__"
        ) from error
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that stores arrays and the memory of CPU tensors out of band. Shared memory stays shared."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=self._aside)
        self._buffers = buffers
        self._memories: dict[int, _Memory] = {}

    def _aside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True
        self._buffers.append(raw)
        return False

    def reducer_override(self, thing: Any) -> Any:
        """Reduce tensors and mapped files specially, and everything else like cloudpickle."""
        if type(thing) is _Memory:
            return _Memory.again, (pickle.PickleBuffer(thing.array),)
        if type(thing) is np.memmap and _is_whole_file(thing):
            mode = "r+" if thing.mode == "w+" else thing.mode
            order = "C" if thing.flags.c_contiguous else "F"
            return np.memmap, (thing.filename, thing.dtype, mode, thing.offset, thing.shape, order)
        if not _is_plain(thing):
            return super().reducer_override(thing)
        storage = thing.untyped_storage()
        memory = self._memories.setdefault(storage.data_ptr(), _Memory(storage)) if len(storage) else _Memory(storage)
        return _tensor, (memory, thing.dtype, thing.storage_offset(), tuple(thing.shape), thing.stride())


class _Memory:
    """The memory behind one or more tensors."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.array: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()

    @staticmethod
    def again(buffer: Any) -> "_Memory":
        """Rebuild the memory from a mapped buffer, or from a copy if it is small."""
        found = np.frombuffer(buffer, dtype=np.uint8)
        if not found.flags.writeable:
            found = found.copy()
        return _Memory(torch.from_numpy(found).untyped_storage())


def _is_whole_file(mapped: Any) -> bool:
    return isinstance(mapped.base, mmap.mmap) and mapped.filename is not None


def _is_plain(thing: Any) -> bool:
    return (
        type(thing) is torch.Tensor
        and thing.device.type == "cpu"
        and thing.layout == torch.strided
        and not (thing.requires_grad or thing.is_quantized or thing.is_conj() or thing.is_neg())
    )


def _tensor(
    memory: _Memory, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(memory.storage, offset, shape, stride)
