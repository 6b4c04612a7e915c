"""Whole hosts are switched off with their processes and disks: counts are exact.

The journal and the manifests are on a volume that outlives the master's host.
"""

import random

import numpy as np
import pytest

from springtide.domain.core.roles import RoleKind
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from tests.process import counting, hosts
from tests.process.hosted_jobs import HostedJob

pytestmark = [pytest.mark.process, pytest.mark.soak]
REFUSED = hosts.refusal()
needs_hosts = pytest.mark.skipif(REFUSED is not None, reason=f"no hosts of our own here: {REFUSED}")
BATCH = 16


class Places:
    """Roles are placed round-robin on all hosts but the first and lost ones; servers never share a host."""

    def __init__(self, found):
        self.found, self.of = found, {}

    def __call__(self, life):
        taken = {at for role, at in self.of.items() if role.kind is RoleKind.SERVER is life.role.kind}
        others = [name for name in self.found.names[1:] if self.found.up(name) and name not in taken]
        host = self.of.setdefault(life.role, self.found.names[1 + life.role.rank % (len(self.found.names) - 1)])
        if not self.found.up(host):
            host = self.of[life.role] = others[(life.role.rank + life.incarnation) % len(others)]
        return host


def ready_events(job, role):
    return [event for event in job.story if event["event"] == "ready" and event["role"] == role]


# test_mirror and test_private_disks restore a lost host from its mirror; only this one restores from storage alone
MIRRORED = [
    pytest.param(1, "mirror", marks=pytest.mark.soak),
    pytest.param(3, "mirror and url", marks=pytest.mark.soak),
]


@needs_hosts
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "kept"), [(2, "url"), *MIRRORED])
def test_hosts_switched_off_in_turn_lose_and_repeat_nothing(tmp_path, seed, kept):
    print("seed", seed)
    chance, ids = random.Random(seed), counting.draw(np.random.default_rng(seed), 60_000)
    script = counting.write(tmp_path, ids)
    url = f"file://{tmp_path}/copies" if "url" in kept else ""
    rules = CheckpointRules(every_s=0.5, mirror="mirror" in kept, url=url, upload_every_s=1.0)
    spec = JobSpec(
        name="apart",
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        silence_s=10.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=128,
        checkpoints=rules,
    )
    with hosts.Hosts(["one", "two", "three", "four", "five"], tmp_path) as found:
        places, arguments = Places(found), [tmp_path, 1, BATCH, 0.005]
        with HostedJob(script, arguments, hosts=found, spec=spec, folder=tmp_path / "runs", place=places) as job:
            for lost in range(4):
                saved, copied = job.status.checkpoints.number, job.status.checkpoints.uploaded
                job.until(
                    lambda status, saved=saved, copied=copied: (
                        job.over
                        or (
                            status.checkpoints.number >= saved + 2 and (status.checkpoints.uploaded > copied or not url)
                        )
                    )
                )
                if job.over:
                    break  # of a slow machine's workers the fast ones have trained it all meanwhile
                server = f"server-{chance.randrange(2)}"
                before = len(ready_events(job, server))
                host = next(at for role, at in places.of.items() if str(role) == server)
                found.kill(host)
                if lost % 2:
                    job.kill("master")  # with its host: another agent, over the same volume
                    job.replace_agent()
                job.until(lambda _, server=server, before=before: job.over or len(ready_events(job, server)) > before)
                found.start(host)
            status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    backs = [event for role in ("server-0", "server-1") for event in ready_events(job, role) if event.get("checkpoint")]
    assert len(backs) >= 2 and all("mirror" in back or back["where"] == url for back in backs), backs
