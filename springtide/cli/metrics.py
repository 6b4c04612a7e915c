"""`springtide metrics`: a job's figures for monitors, printed once.

In: a run from `cli.jobs`. Out: Prometheus' text format; `--json` puts the same figures on a last line.
"""

import msgspec

from springtide.cli import jobs
from springtide.master import gauges


def metrics(name: str | None, *, folder: str, as_json: bool) -> int:
    """Print them."""
    run = jobs.pick(name, folder)
    status = jobs.status_of(run)
    print(gauges.text(status, run=run.job), end="")
    if as_json:
        families = {
            each.name: [{"labels": dict(labels), "value": value} for labels, value in each.values]
            for each in gauges.families(status)
        }
        print(msgspec.json.encode({"job": run.job, "metrics": families}).decode())
    return 0
