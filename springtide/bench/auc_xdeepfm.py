"""The same as `bench auc`, for xDeepFM.

Next: `sim.trained` fills a row of DLRover's section 6.2 with what comes out.
"""

from springtide.bench import Options, auc, report


def bench(options: Options) -> report.Result:
    """Undisturbed and disturbed."""
    return auc.bench(options, "xdeepfm")
