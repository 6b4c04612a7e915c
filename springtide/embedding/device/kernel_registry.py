"""Chooses the kernels for a kind of device: Triton on a CUDA GPU, and plain torch elsewhere or without Triton."""

import functools
import importlib.util
import logging
from typing import Any

from springtide.embedding.device.kernels import Kernels

log = logging.getLogger(__name__)


@functools.cache
def of_device(kind: str) -> Kernels:
    """Return the kernels for this kind of device, `cuda` or `cpu`."""
    from springtide.embedding.device import torch_kernels

    if kind == "cuda" and importlib.util.find_spec("triton") is not None:
        from springtide.embedding.device import triton_kernels

        made: Any = triton_kernels
        return made  # type: ignore[no-any-return]
    if kind == "cuda":
        log.warning("triton is not installed, so rows on the GPU are trained by plain torch calls, which are slower")
    plain: Any = torch_kernels
    return plain  # type: ignore[no-any-return]
