"""Finds the CUDA GPUs that processes on this machine may use, and measures how much this process uses its GPUs.

GPUs are found without torch and without a CUDA context. `CUDA_VISIBLE_DEVICES` limits the GPUs, as it does for every
CUDA program. Without that variable, `nvidia-smi -L` lists the GPUs; without `nvidia-smi`, the device files give
their number. Next: `platforms.local.gpu_assignment`.
"""

import ctypes
import functools
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

from springtide import config
from springtide.domain.core.resources import GpuUse, sum_gpus

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICES = pathlib.Path("/dev")
LIST_S = 30.0  # seconds to wait for nvidia-smi, which must load the driver if no other process uses it

_LINE = re.compile(r"^(?P<part>\s*)(?:GPU|MIG)\b.*\(UUID: (?P<uuid>[A-Za-z0-9-]+)\)\s*$", re.MULTILINE)


def visible(given: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the GPUs by the names that `CUDA_VISIBLE_DEVICES` uses. `given` has the variables of the job, which take
    precedence over the environment."""
    limit = {**config.variables(), **(given or {})}.get(VARIABLE)
    if limit is not None:
        return parse_limit(limit, count())
    return _listed() if count() else ()


def parse_limit(text: str, cards: int) -> tuple[str, ...]:
    """Return the devices in a value of `CUDA_VISIBLE_DEVICES`. As in CUDA, a device that does not exist ends the
    list."""
    devices: list[str] = []
    for device in (part.strip() for part in text.split(",")):
        there = int(device) < cards if device.isdecimal() else cards and device.startswith(("GPU-", "MIG-"))
        if not there:
            break
        devices.append(device)
    return tuple(dict.fromkeys(devices))


def parse_list(text: str) -> tuple[str, ...]:
    """Return the devices that `nvidia-smi -L` lists. For a card that is divided into MIG instances, return the
    instances."""
    devices: list[str] = []
    whole = ""
    for line in _LINE.finditer(text):
        if not line["part"]:
            whole = line["uuid"]
        elif devices and devices[-1] == whole:
            devices.pop()
        devices.append(line["uuid"])
    return tuple(devices)


def count() -> int:
    """Return the number of NVIDIA cards of this machine."""
    return len(list(DEVICES.glob("nvidia[0-9]*")))


@functools.cache
def _listed() -> tuple[str, ...]:
    numbers = tuple(str(number) for number in range(count()))
    if not (tool := shutil.which("nvidia-smi")):
        return numbers
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=LIST_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return numbers
    return parse_list(done.stdout) or numbers


def own_use() -> GpuUse | None:
    """Return this process's usage of its GPUs; return None if torch has not used a GPU in this process. Never waits for
    the GPU.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    uses = []
    for device in range(cuda.device_count()):
        if memory := cuda.memory_reserved(device):
            card = cuda.get_device_properties(device)
            allocated, busy = cuda.memory_allocated(device), busy_share(str(getattr(card, "uuid", "")))
            uses.append(GpuUse(memory=memory, allocated=allocated, total=card.total_memory, busy=busy))
    return sum_gpus(uses)


class NvmlUtilization(ctypes.Structure):
    """`nvmlUtilization_t`: the percentages of the last sample period in which the GPU computed and in which it moved
    memory."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def busy_share(uuid: str) -> float | None:
    """Return how busy a GPU was, as reported by the driver's NVML. Return None without NVML, and for a MIG instance."""
    library, handle, rates = _nvml(), ctypes.c_void_p(), NvmlUtilization()
    if library is None or library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)):
        return None
    return None if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) else rates.gpu / 100


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")  # the GPU driver installs this library, as it installs nvidia-smi
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
