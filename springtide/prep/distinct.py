"""torch.unique of integers in the programs of data workers, natively: the same to the bit in a fraction of the time.

In: the graph of a stage (prep/stages.py), whose calls of unique become calls of `unique2` here. Sparse features are
made distinct over and over, and torch sorts with comparisons; cpp/distinct.cpp counts, or sorts by digits. What it is
not made for goes to torch. Next: the program runs on data workers, and is verified with the rest of the split.
"""

import torch
from torch import fx

from springtide import _native

FEWEST, MOST = 1024, 1 << 31  # of fewer torch is as quick
Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_torchs = torch.ops.aten._unique2.default


def quicken(graph: fx.Graph) -> None:
    """Calls of unique that sort, as all of torch.unique() on a CPU, are answered here."""
    for node in graph.find_nodes(op="call_function", target=_torchs):
        if len(node.args) < 2 or node.args[1] is True:
            node.target = unique2


def unique2(
    given: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Found:
    """Distinct values, the place of each element among them, and how often each came; empty what is not wanted."""
    if given.dtype not in (torch.int64, torch.int32) or not given.is_cpu or not FEWEST <= given.numel() < MOST:
        found: Found = _torchs(given, sorted, return_inverse, return_counts)
        return found
    flat = given.to(torch.int64).contiguous().view(-1)
    values = torch.empty_like(flat)
    inverse = torch.empty(given.shape if return_inverse else 0, dtype=torch.int64)
    counts = torch.empty_like(flat) if return_counts else torch.empty(0, dtype=torch.int64)
    many = _native.distinct(flat.numpy(), values.numpy(), inverse.view(-1).numpy(), counts.numpy())
    if return_counts:
        counts.resize_(many)
    return values.resize_(many).to(given.dtype), inverse, counts
