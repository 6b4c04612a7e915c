"""Compares tensors bit by bit: results of two programs, and constants with the copies on data workers.

Version counters and identities do not show every write: `.data`, NumPy and DLPack write to memory without increasing
the version. The trainer therefore compares the bits of every constant that the moved part reads, for every batch.
"""

import ctypes
import hashlib
from typing import Any

import torch
from torch import nn

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

# largest constant that may move, in bytes: comparing 1 MiB takes 0.1 ms on a slow core. Calls with larger constants
# stay in the trainer.
MOST_BYTES = 1 << 20
KINDS = (torch.Tensor, nn.Parameter, nn.Buffer)


def same_bytes(left: int, right: int, size: int) -> bool:
    return bool(_memcmp(left, right, size) == 0)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if two tensors are equal bit by bit: NaN equals NaN, and zeros must have the same sign."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    one, other = left.detach().cpu().contiguous(), right.detach().cpu().contiguous()
    return same_bytes(one.data_ptr(), other.data_ptr(), one.numel() * one.element_size())


def is_comparable(value: torch.Tensor) -> bool:
    return (
        type(value) in KINDS
        and not value.requires_grad
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
        and value.is_contiguous()
        and value.numel() * value.element_size() <= MOST_BYTES
    )


def digest(value: torch.Tensor) -> bytes:
    flat = value.detach().reshape(-1)
    held: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return hashlib.blake2b(held, digest_size=16).digest()


class Snapshot:
    """A tensor's content at a point in time."""

    __slots__ = ("_bytes", "_strides", "_tensor", "_version", "copy")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version, self._strides = tensor, tensor._version, tensor.stride()
        self.copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._bytes = self.copy.numel() * self.copy.element_size()

    @property
    def is_still(self) -> bool:
        """True if nothing has written to the tensor or its memory, and nothing has requested a gradient for it."""
        tensor = self._tensor
        if tensor._version != self._version or tensor.requires_grad or tensor.shape != self.copy.shape:
            return False
        if tensor.stride() != self._strides or tensor.dtype is not self.copy.dtype:
            return False
        now = tensor.detach().contiguous()
        return same_bytes(now.data_ptr(), self.copy.data_ptr(), self._bytes)
