"""Rows in "device" memory that is the CPU's, so that plain torch kernels run the whole path."""

import pytest
import torch

from springtide.embedding.lookup import lookup
from springtide.embedding.lookup.tables import ServedTable


@pytest.fixture
def rows_in_device(monkeypatch):
    """Switch that says whether rows are in "device" memory, which is the CPU's."""
    follow = ServedTable.follow_device

    def switch(on: bool) -> None:
        where = lambda table, device: setattr(table, "gpu", torch.device("cpu"))  # noqa: E731
        monkeypatch.setattr(ServedTable, "follow_device", where if on else follow)
        monkeypatch.setattr(lookup, "_on_gpu", lambda ids: on)

    switch(True)
    return switch
