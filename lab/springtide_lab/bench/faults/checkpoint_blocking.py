"""Measure in one process how long several ways to save a state dict block the caller.

Options: kind (local | dlrover), gigabytes. The ways of `local` are Springtide's Checkpointer, torch.save, torch's
async_save, and a copy by two threads into other memory. A round names the way to save, and returns the seconds for
which the caller was blocked. The process answers after the rest of the save has ended.
"""

import atexit
import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import line
import torch

PACKAGES = ("torch",)

Way = Callable[[int], tuple[float, Callable[[], object]]]
"""Function that starts the save with the given number. The function returns the blocked seconds, and a function that
waits for the end of the save.
"""

THREADS = 2


def state_of(gigabytes: float) -> dict[str, torch.Tensor]:
    """Return a state of some large and many small tensors, like that of a model and its optimizer."""
    large = {f"large.{i}": torch.randn(int(gigabytes * 2**30 / 4 / 32)) for i in range(32)}
    return large | {f"small.{i}": torch.randn(256) for i in range(300)}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Call `work`; return its seconds and its result."""
    began = time.perf_counter()
    given = work()
    return time.perf_counter() - began, given


def memcpy(state: dict[str, torch.Tensor]) -> Way:
    """Return the baseline: two threads copy half of every tensor each, into pages that are already allocated."""
    copies = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    blocks: list[list[tuple[int, int, int]]] = [[] for _ in range(THREADS)]
    for name, tensor in state.items():
        half = tensor.numel() * tensor.element_size() // THREADS
        for i, share in enumerate(blocks):
            share.append((copies[name].data_ptr() + i * half, tensor.data_ptr() + i * half, half))

    def copy(share: list[tuple[int, int, int]]) -> None:
        for to, source, size in share:
            ctypes.memmove(to, source, size)

    return lambda number: (timed(lambda: list(pool.map(copy, blocks)))[0], copies.keys)  # `keys` keeps the copies alive


def springtide(state: dict[str, torch.Tensor], folder: pathlib.Path) -> Way:
    from springtide.checkpoint import Checkpointer

    checkpointer = Checkpointer(folder / "ours", keep=1, memory=shared_memory(folder))

    def save(number: int) -> tuple[float, Callable[[], object]]:
        seconds, save = timed(lambda: checkpointer.save(number, state))
        return seconds, save.wait

    return save


def shared_memory(folder: pathlib.Path) -> pathlib.Path:
    """Create a folder in shared memory, which is removed together with `folder`."""
    place = pathlib.Path("/dev/shm") / folder.name
    place.mkdir(parents=True)
    return place


def torch_save(state: dict[str, torch.Tensor], folder: pathlib.Path) -> Way:
    return lambda number: (timed(lambda: torch.save(state, folder / "torch.pt"))[0], lambda: None)


def distributed_save(state: dict[str, torch.Tensor], folder: pathlib.Path) -> Way:
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import async_save

    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)

    def save(number: int) -> tuple[float, Callable[[], object]]:
        place = folder / "dcp"
        shutil.rmtree(place, ignore_errors=True)
        seconds, future = timed(lambda: async_save(state, checkpoint_id=place))
        return seconds, future.result

    return save


def dlrover(state: dict[str, torch.Tensor], folder: pathlib.Path) -> Way:
    import torch.distributed as dist

    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    os.environ.update(
        single | {"ELASTIC_JOB_NAME": folder.name, "TORCHELASTIC_RUN_ID": folder.name}
    )  # names of its sockets
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    checkpointer = DdpCheckpointer(str(folder / "dlrover"))
    memory = pathlib.Path(f"/dev/shm/{folder.name}_ckpt_shm_0")
    atexit.register(memory.unlink, missing_ok=True)  # DLRover does not remove its memory and its sockets
    atexit.register(shutil.rmtree, pathlib.Path("/tmp/ckpt_sock") / folder.name, ignore_errors=True)

    def save(number: int) -> tuple[float, Callable[[], object]]:
        path = str(folder / "dlrover" / f"{number}.pt")
        call = lambda: checkpointer.save_checkpoint(number, state, path, storage_type=StorageType.MEMORY)  # noqa: E731
        return timed(call)[0], lambda: None

    return save


def start(options: dict[str, Any]) -> line.Round:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="springtide-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(shutil.rmtree, pathlib.Path("/dev/shm") / folder.name, ignore_errors=True)
    state = state_of(options["gigabytes"])
    if options["kind"] == "dlrover":
        ways: dict[str, Way] = {"dlrover": dlrover(state, folder)}
    else:
        ways = {"memcpy": memcpy(state), "springtide": springtide(state, folder)}
        ways |= {"torch.save": torch_save(state, folder), "async_save": distributed_save(state, folder)}
    number = 0

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal number
        number += 1
        seconds, rest = ways[request["way"]](number)
        rest()
        return {"figure": seconds}

    return measure
