"""The same as `bench auc`, for xDeepFM.

Next: `springtide_lab.reproduce.dlrover_rm.trained` fills a row of DLRover's section 6.2 with what comes out.
"""

from springtide_lab.bench import Options
from springtide_lab.bench.core import report
from springtide_lab.bench.train import auc


def bench(options: Options) -> report.Result:
    """Undisturbed and disturbed."""
    return auc.bench(options, "xdeepfm")
