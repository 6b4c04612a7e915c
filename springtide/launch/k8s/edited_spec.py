"""The spec that a master on Kubernetes goes by, kept beside its journal: the next agent sees what was edited since.

In: `launch.k8s.pod_requests`, when a job begins and when the master has taken in another spec. Out: a file that lives
as long as the journal does, so that what both say fits together.
"""

import logging

import msgspec

from springtide import errors, private_files
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)


def read(files: logs.RunFiles, now: ElasticJob) -> ElasticJob:
    """The spec that the journal's master was told of last; `now`, the present one, where no master has begun yet."""
    try:
        text = files.heeded.read_bytes() if files.journal.exists() else b""
        return schema.from_spec(msgspec.json.decode(text), now.name) if text else now
    except FileNotFoundError:  # the journal is of a version that kept no such file
        return now
    except (OSError, msgspec.DecodeError, errors.BadInput) as error:
        log.warning("what was edited while no master was there is not known: %s: %s", files.heeded, error)
        return now


def write(files: logs.RunFiles, job: ElasticJob) -> None:
    """Remember it: under another name first, so that no half of it is ever read."""
    try:
        private_files.replace(files.heeded, msgspec.json.encode(schema.spec_of(job)))
    except OSError as error:
        raise events.as_disk_error(error, files.heeded) from error
