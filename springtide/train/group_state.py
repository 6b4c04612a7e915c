"""Where a bsp group's dense parameters and optimizers lie on the servers: bytes in the rows of a reserved table.

In: group.py, when a checkpoint is due. Out: slots that have all there is of the job, so a checkpoint of them needs
nothing else; and the same bytes for the leader of a group that goes on from one. Next: model_state.py (what they mean).

Key 0 says how many bytes there are and their sum; the bytes follow in rows of 4 KiB. They are assigned and read as
they are: nothing computes with them.
"""

import struct
import zlib

import numpy as np

from springtide import errors
from springtide.domain.tables import TableSpec
from springtide.embedding.client import TableClient

TABLE = "group:state"
ROW = 1024  # floats: 4 KiB
_HEAD = struct.Struct("<8sQI")  # magic, bytes, their sum
_MAGIC = b"ST-GROUP"


def declare(client: TableClient) -> None:
    """The table has the number after the last one of the model."""
    number = max((spec.id for spec in client.specs), default=-1) + 1
    client.declare([TableSpec(id=number, name=TABLE, dim=ROW)])


def put(client: TableClient, body: bytes) -> None:
    """Every server has its part of these bytes when this returns."""
    head = _HEAD.pack(_MAGIC, len(body), zlib.crc32(body))
    whole = head.ljust(4 * ROW, b"\0") + body + b"\0" * (-len(body) % (4 * ROW))
    rows = np.frombuffer(whole, dtype=np.float32).reshape(-1, ROW)
    client.assign(TABLE, np.arange(len(rows)), rows)


def get(client: TableClient) -> bytes:
    """The bytes that were put last; `JobFailed` when they are not there, or not whole."""
    magic, size, check = _HEAD.unpack_from(client.read(TABLE, np.arange(1)).tobytes())
    if magic != _MAGIC:
        raise errors.JobFailed(
            "the servers do not have the dense parameters of a bsp group: the checkpoint that this job goes on from "
            'was not made with sync="bsp"'
        )
    body = client.read(TABLE, np.arange(1, 1 - (-size // (4 * ROW)))).tobytes()[:size]
    if zlib.crc32(body) != check:
        raise errors.JobFailed("the dense parameters that the servers have of the bsp group are damaged")
    return body
