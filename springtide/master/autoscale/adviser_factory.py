"""Chooses the adviser that plans for a job: an embedded brain, or a shared brain with the embedded brain as fallback.

In: `PlanRules`. Out: an `Adviser`. Next: `master.autoscale.loop` asks the adviser for plans, and
`launch.spec.initial_resources` asks it for the first shape.
"""

import pathlib
import socket
from dataclasses import replace

from springtide import config
from springtide.brain.service.client import FailoverAdviser, RemoteAdviser
from springtide.brain.service.embedded import EmbeddedAdviser
from springtide.domain.plan.plan import Adviser
from springtide.domain.spec.planning_config import PlanRules

SECRET = ".springtide/brain/secret"
"""Path of the secret that `springtide brain serve` writes, relative to the working folder."""


def make_adviser(rules: PlanRules, *, folder: str = "") -> Adviser:
    """Return the adviser that the rules name. A key distinguishes jobs with the same name, even across masters."""
    assert rules.bounds is not None
    quota, most = rules.bounds.quota, rules.bounds.most
    beyond = rules.config.extra_workers * most.worker_cpu  # low-priority workers use only what others leave
    own = EmbeddedAdviser(rules.adviser.history, rules.config, replace(quota, cpu=quota.cpu + beyond))
    where = rules.adviser
    if not where.brain:
        return own
    secret = config.read_secret(str(pathlib.Path(where.secret_file or SECRET)), "the brain's secret")
    key = where.key or f"{socket.gethostname()}:{folder}"
    return FailoverAdviser(RemoteAdviser(where.brain, secret, key=key, certificates=where.tls), own)
