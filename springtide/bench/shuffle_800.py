"""One scene of `bench shuffle` by itself, a burst in ten of 800 partitions: a minute instead of three."""

from springtide.bench import Options, report, shuffle


def bench(options: Options) -> report.Result:
    """All strategies on it."""
    return shuffle.measure(options, [shuffle.MANY])
