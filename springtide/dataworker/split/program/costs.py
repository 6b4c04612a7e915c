"""Pure. What torch calls cost, for the cut: seconds by a rule that is one for all.

Every worker of a job must choose the same cut, so seconds are not measured but estimated, from the number of elements
and the kind of operation. Used by: dataworker/split/search/split.py. Next: dataworker/split/program/min_cut.py.
"""

CALL_S = 3e-6  # to call an operation at all
VIEW_S = 1e-6  # one that touches no element
MARKED_S = 1.0  # a function of the user's own: it moves, whatever it sends
EACH_S = 1e-9  # an element of an elementwise operation
# measured on 1 M rows, one thread: unique with inverse 112 ms, an integer hash of five operations 15 ms
SLOW_S: dict[str, float] = {
    "unique": 1.1e-7, "sort": 8e-8, "argsort": 8e-8, "topk": 4e-8, "bucketize": 1e-8, "searchsorted": 1e-8,
    "nonzero": 4e-9, "index": 4e-9, "getitem": 4e-9, "gather": 4e-9, "scatter": 6e-9, "remainder": 4e-9, "pow": 1e-8,
    "log": 5e-9, "exp": 5e-9, "sin": 8e-9, "cos": 8e-9, "isin": 1e-7, "histc": 1e-8, "bincount": 4e-9, "cumsum": 3e-9,
}  # fmt: skip


def estimate(operation: str, elements: int, *, view: bool) -> float:
    """Seconds of one call on one core, by its kind and the most elements that it reads or makes."""
    if view:
        return VIEW_S
    each = next((cost for word, cost in SLOW_S.items() if operation.startswith(word)), EACH_S)
    return CALL_S + each * elements
