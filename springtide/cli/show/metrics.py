"""`springtide metrics`: a job's figures for monitors, printed once.

In: a job, by `launch.job_lookup`. Out: Prometheus' text format; `--json` puts the same figures on a last line.
"""

import msgspec

from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.master import metrics as gauges


def metrics(name: str | None, where: JobLocation, *, as_json: bool) -> int:
    reach = job_lookup.find(name, where)
    status = reach.status()
    print(gauges.text(status, run=reach.name), end="")
    if as_json:
        families = {
            each.name: [{"labels": dict(labels), "value": value} for labels, value in each.values]
            for each in gauges.families(status)
        }
        print(msgspec.json.encode({"job": reach.name, "metrics": families}).decode())
    return 0
