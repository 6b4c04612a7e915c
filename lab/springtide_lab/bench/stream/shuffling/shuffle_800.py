"""One scene of `bench shuffle` by itself, a burst in ten of 800 partitions: a minute instead of three."""

from springtide_lab.bench import Options
from springtide_lab.bench.core import report
from springtide_lab.bench.stream.shuffling import shuffle


def bench(options: Options) -> report.Result:
    """All strategies on it."""
    return shuffle.measure(options, [shuffle.MANY])
