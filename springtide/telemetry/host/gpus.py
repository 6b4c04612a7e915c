"""Finds the CUDA GPUs that processes of this machine may use, without torch and without a CUDA context.

`CUDA_VISIBLE_DEVICES` limits them, as it does for every CUDA program. Else `nvidia-smi -L` lists them, and without
`nvidia-smi` the device files count them. Next: `platforms.local.gpu_assignment`.
"""

import functools
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping

from springtide import config

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICES = pathlib.Path("/dev")
LIST_S = 30.0  # seconds for nvidia-smi, which loads the driver if no other process holds it

_LINE = re.compile(r"^(?P<part>\s*)(?:GPU|MIG)\b.*\(UUID: (?P<uuid>[A-Za-z0-9-]+)\)\s*$", re.MULTILINE)


def visible(given: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the GPUs as `CUDA_VISIBLE_DEVICES` names them. `given`: variables of the job, which precede our own."""
    limit = {**config.variables(), **(given or {})}.get(VARIABLE)
    if limit is not None:
        return parse_limit(limit, count())
    return _listed() if count() else ()


def parse_limit(text: str, cards: int) -> tuple[str, ...]:
    """Return the devices of a `CUDA_VISIBLE_DEVICES`. As in CUDA, a device that is not there ends the list."""
    devices: list[str] = []
    for device in (part.strip() for part in text.split(",")):
        there = int(device) < cards if device.isdecimal() else cards and device.startswith(("GPU-", "MIG-"))
        if not there:
            break
        devices.append(device)
    return tuple(dict.fromkeys(devices))


def parse_list(text: str) -> tuple[str, ...]:
    """Return the devices that `nvidia-smi -L` lists. A card that is cut into MIG instances counts as its instances."""
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
