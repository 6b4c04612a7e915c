"""Ways for tensors to cross from one process to another, each with its two sides. Imported by its bare name.

`SENDING[way](sock, tensors)` gives a function that sends once; `RECEIVING[way](sock, tensors)` one that receives once
and gives back what has come: tensors, or for the raw ways the memory they lie in. `tensors` are of the same shapes
on both sides. Raw: what a program would do that knows all shapes beforehand, and nothing else.
"""

import io
import itertools
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Sent = Callable[[], None]
Came = Callable[[], Any]
LENGTH = struct.Struct("<Q")


def draw(tensors: int, rows: int, seed: int = 0) -> list[torch.Tensor]:
    """A batch of click data: columns of ids, then dense features, labels, and weights of samples."""
    drawn = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 1 << 40, (rows,), generator=drawn) for _ in range(tensors - 3)]
    return [*ids, *(torch.rand(shape, generator=drawn) for shape in ((rows, 13), (rows,), (rows,)))]


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def buffers(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    return [as_bytes(tensor) for tensor in tensors]


def read(sock: socket.socket, into: memoryview) -> None:
    done = 0
    while done < len(into):
        came = sock.recv_into(into[done:], 0, socket.MSG_WAITALL)
        if not came:
            raise EOFError
        done += came


def read_long(sock: socket.socket) -> bytearray:
    """A length, and so many bytes."""
    head = bytearray(LENGTH.size)
    read(sock, memoryview(head))
    body = bytearray(LENGTH.unpack(head)[0])
    read(sock, memoryview(body))
    return body


def send_all(sock: socket.socket, pieces: list[memoryview]) -> None:
    while pieces:
        sent = sock.sendmsg(pieces[:1024])
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]


def send_raw(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:
    pieces = [memoryview(LENGTH.pack(sum(tensor.nbytes for tensor in tensors))), *buffers(tensors)]
    return lambda: send_all(sock, list(pieces))


def receive_raw(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    """Into memory that is there already and used again for each batch."""
    into = memoryview(bytearray(LENGTH.size + sum(tensor.nbytes for tensor in tensors)))

    def receive() -> Any:
        read(sock, into)
        return into

    return receive


def send_raw_shared(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:
    """Copied into memory that both have mapped; a byte through the socket says that it is there."""
    size = sum(tensor.nbytes for tensor in tensors)
    fd = os.memfd_create("raw")
    os.ftruncate(fd, size)
    pages = memoryview(mmap.mmap(fd, size))
    sock.sendall(f"/proc/{os.getpid()}/fd/{fd}".encode().ljust(64))
    ends = itertools.accumulate((tensor.nbytes for tensor in tensors), initial=0)
    pairs = [(buffer, pages[a:b]) for buffer, (a, b) in zip(buffers(tensors), itertools.pairwise(ends), strict=True)]

    def send() -> None:
        for buffer, there in pairs:
            there[:] = buffer
        sock.sendall(b"!")

    return send


def receive_raw_shared(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    """Copied out into memory that is there already, one piece a tensor."""
    path = bytearray(64)
    read(sock, memoryview(path))
    fd = os.open(path.decode().strip(), os.O_RDWR)
    size = sum(tensor.nbytes for tensor in tensors)
    pages = memoryview(mmap.mmap(fd, size))
    own = buffers([torch.empty_like(tensor) for tensor in tensors])
    ends = itertools.accumulate((tensor.nbytes for tensor in tensors), initial=0)
    pairs = [(buffer, pages[a:b]) for buffer, (a, b) in zip(own, itertools.pairwise(ends), strict=True)]
    bell = memoryview(bytearray(1))

    def receive() -> Any:
        read(sock, bell)
        for buffer, there in pairs:
            buffer[:] = there
        return own

    return receive


def send_pickle(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:

    def send() -> None:
        body = pickle.dumps(list(tensors), protocol=5)
        send_all(sock, [memoryview(LENGTH.pack(len(body))), memoryview(body)])

    return send


def send_torch_save(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:

    def send() -> None:
        written = io.BytesIO()
        torch.save(list(tensors), written)
        body = written.getbuffer()
        send_all(sock, [memoryview(LENGTH.pack(len(body))), body])

    return send


def send_arrow(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:
    """A record batch in Arrow's stream format: one column a tensor."""
    import pyarrow as pa

    def column(tensor: torch.Tensor) -> Any:
        flat = pa.array(tensor.view(-1).numpy())
        return flat if tensor.dim() == 1 else pa.FixedSizeListArray.from_arrays(flat, tensor.shape[1])

    def send() -> None:
        batch = pa.record_batch([column(tensor) for tensor in tensors], names=[str(n) for n in range(len(tensors))])
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, batch.schema) as stream:
            stream.write_batch(batch)
        body = memoryview(written.getvalue())
        send_all(sock, [memoryview(LENGTH.pack(len(body))), body])

    return send


def receive_arrow(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    import warnings

    import pyarrow as pa

    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # pyarrow's view of our memory

    def tensor(column: Any) -> torch.Tensor:
        flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        made = np.frombuffer(flat.buffers()[1], flat.type.to_pandas_dtype(), len(flat), flat.offset)
        return torch.from_numpy(made).view(len(column), -1)

    def receive() -> Any:
        with pa.ipc.open_stream(pa.py_buffer(read_long(sock))) as stream:
            return [tensor(column) for column in stream.read_next_batch().columns]

    return receive


def receive_pickle(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    """From the same machine's other process, in a benchmark: never from a peer."""
    return lambda: pickle.loads(read_long(sock))


def receive_torch_save(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    return lambda: torch.load(io.BytesIO(read_long(sock)), weights_only=True)


SENDING: dict[str, Callable[[socket.socket, Sequence[torch.Tensor]], Sent]] = {
    "raw sendmsg": send_raw,
    "raw shared copy": send_raw_shared,
    "pickle": send_pickle,
    "torch.save": send_torch_save,
    "arrow": send_arrow,
}
RECEIVING: dict[str, Callable[[socket.socket, Sequence[torch.Tensor]], Came]] = {
    "raw sendmsg": receive_raw,
    "raw shared copy": receive_raw_shared,
    "pickle": receive_pickle,
    "torch.save": receive_torch_save,
    "arrow": receive_arrow,
}
