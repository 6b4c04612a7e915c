"""Store a bsp group's dense parameters and optimizers on the servers, in rows of a reserved table.

In: group.py, when a checkpoint is due. Out: slots that hold the complete state of the job, so that a checkpoint of the
slots is enough. The leader of a restored group reads these bytes back. Next: model_state.py (the content),
checkpoint/format/group_model.py (the layout in rows).
"""

import numpy as np

from springtide import errors
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.group_model import TABLE
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient


def declare(client: TableClient) -> None:
    number = max((spec.id for spec in client.specs), default=-1) + 1
    client.declare([TableSpec(id=number, name=TABLE, dim=group_model.ROW)])


def put(client: TableClient, body: bytes) -> None:
    rows = group_model.rows_of(body)
    client.assign(TABLE, np.arange(len(rows)), rows)


def get(client: TableClient) -> bytes:
    """Return the bytes of the last `put`; `JobFailed` if they are missing or incomplete."""
    count = group_model.rows_after(client.read(TABLE, np.arange(1)))
    if count is None:
        raise errors.JobFailed(
            "the servers do not have the dense parameters of a bsp group: the checkpoint that this job goes on from "
            'was not made with sync="bsp"'
        )
    try:
        return group_model.body_of(client.read(TABLE, np.arange(1 + count)))
    except errors.BadInput as error:
        raise errors.JobFailed(f"{error}, as the servers have them") from None
