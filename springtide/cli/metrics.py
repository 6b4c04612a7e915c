"""`springtide metrics`: a job's figures for monitors, printed once.

In: a job, by `launch.finding`. Out: Prometheus' text format; `--json` puts the same figures on a last line.
"""

import msgspec

from springtide.launch import finding
from springtide.launch.finding import Where
from springtide.master import gauges


def metrics(name: str | None, where: Where, *, as_json: bool) -> int:
    """Print them."""
    reach = finding.find(name, where)
    status = reach.status()
    print(gauges.text(status, run=reach.name), end="")
    if as_json:
        families = {
            each.name: [{"labels": dict(labels), "value": value} for labels, value in each.values]
            for each in gauges.families(status)
        }
        print(msgspec.json.encode({"job": reach.name, "metrics": families}).decode())
    return 0
