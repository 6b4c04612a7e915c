"""What torch.distributed.rpc calls on the other side: both ends import it by this name."""

import torch

TABLE = torch.empty(0)


def fill(rows: int, dim: int) -> None:
    """Make the table; on the serving side only."""
    global TABLE
    TABLE = torch.ones(rows, dim)


def take(index: torch.Tensor) -> torch.Tensor:
    return TABLE.index_select(0, index)
