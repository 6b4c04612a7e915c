"""`springtide metrics`: prints the state of a job for monitoring systems."""

from springtide.cli.common.options import Job, JsonOnly, WhereOptions, verb
from springtide.cli.common.render import print_result
from springtide.launch import job_lookup
from springtide.master import metrics as job_metrics


@verb("springtide metrics train", "springtide run train.py --metrics-port 9464    metrics served by the job")
def metrics(at: WhereOptions, job: Job = None, as_json: JsonOnly = False) -> int:
    """Print a job's metrics in Prometheus format: progress, roles and stream lag."""
    reach = job_lookup.find(job, at.where())
    status = reach.status()
    families = {
        family.name: [{"labels": dict(labels), "value": value} for labels, value in family.values]
        for family in job_metrics.families(status)
    }
    text = job_metrics.text(status, run=reach.name).rstrip("\n")
    print_result([text], {"job": reach.name, "metrics": families}, as_json)
    return 0
