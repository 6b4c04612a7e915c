"""Pure. A plan without changes that are soon taken back: a number that lasts too briefly becomes its larger neighbour.

In: workers by step of a forecast (min_workers.py). Out: the same, calmer. Kale's Algorithm 1, by its description: the
listing is not in the paper's text.
"""

from collections.abc import Sequence
from itertools import groupby

CHANGE = 1  # workers: a smaller change is not looked at
SHORT_S = 600.0  # a number of workers that lasts less than this is not worth changing to


def stabilize(
    workers: Sequence[int], *, step_s: float, change: int = CHANGE, short_s: float = SHORT_S
) -> tuple[int, ...]:
    """Runs of one number, from the first on. One that was entered by `change` or more and lasts less than `short_s`
    takes the larger of its neighbours; the first has nothing before it, and the last may go on beyond the horizon.
    """
    runs = [(number, len(list(same))) for number, same in groupby(workers)]
    calm: list[tuple[int, int]] = runs[:1]
    for place in range(1, len(runs)):
        number, length = runs[place]
        before = calm[-1][0]
        if place + 1 < len(runs) and abs(number - before) >= change and length * step_s < short_s:
            number = max(before, runs[place + 1][0])
        if number == before:
            calm[-1] = (before, calm[-1][1] + length)
        else:
            calm.append((number, length))
    return tuple(number for number, length in calm for _ in range(length))
