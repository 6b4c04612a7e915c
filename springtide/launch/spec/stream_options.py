"""What a job is told about a stream that it may read: whether and how its workers follow the traffic.

In: an `ElasticJob` and the cores there are. Out: an `OnlineJob` for the job's spec. Next:
`master.autoscale.online_loop` goes by it.
"""

import pathlib
from dataclasses import replace

from springtide import errors
from springtide.domain.core import durations
from springtide.domain.data.online_view import OnlineRules
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.online_job import OnlineJob
from springtide.launch.spec import field_overrides
from springtide.telemetry.logs import RunFiles

SETTINGS = ("speedup", "every_s", "forecaster", "history")
RULES = ("pause_s", "start_s", "lag_price", "late_price", "change_price")


def online_of(job: ElasticJob, *, cores: int) -> OnlineJob:
    """What it may do about a stream. A number of workers or servers that was given stays."""
    following, workers = job.following, job.workers
    fewest = workers.min or 1
    most = workers.max if workers.max is not None else max(cores, fewest)
    rules = OnlineRules(fewest=fewest, most=most, slo_lag_s=durations.seconds("slo_lag", following.slo_lag))
    found = OnlineJob(
        on=following.on and workers.count is None, rules=rules, metrics_port=following.metrics_port,
        servers_follow=job.servers.count is None and job.servers.max is None, history=known(job.resume),
    )  # fmt: skip
    given = [f"{name}={value}" for name, value in following.settings.items()]
    found, rules = field_overrides.changed(
        given, (found, SETTINGS), (rules, RULES), option="--online-setting", example="every=30"
    )  # fmt: skip
    if found.history and not pathlib.Path(found.history).is_file():
        raise errors.MissingFile(
            f"following.settings (--online-setting) history={found.history}: no such file; wanted traffic.jsonl of "
            "another run"
        )
    made: OnlineJob = replace(found, rules=rules)
    return made


def known(resume: str) -> str:
    """Traffic of the run that is gone on from, if it is here and has any."""
    path = RunFiles(pathlib.Path(resume)).traffic if resume and "://" not in resume else None
    return str(path.absolute()) if path is not None and path.is_file() else ""
