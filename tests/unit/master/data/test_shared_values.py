"""The master tells workers where the others take batches, and forgets those that it has given up."""

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import events
from springtide.job.state import JobState
from springtide.master.data.shared_values import ShufflerList

ONE, TWO = LeaseHolder(0), LeaseHolder(1)


def state():
    made = JobState(JobSpec(name="job", workers=2, servers=1))
    for rank in range(2):
        made.handle(events.RoleJoined(Role(RoleKind.WORKER, rank), 0, 1), at=0.0)
    return made


def names(told):
    return [each.name for each in told.members]


def test_a_worker_hears_of_the_others_once():
    known = ShufflerList(state())
    first = known.heard(ONE, "host:1", 0)
    assert names(first) == ["worker-0.0"]
    both = known.heard(TWO, "host:2", 0)
    assert names(both) == ["worker-0.0", "worker-1.0"]
    assert known.heard(TWO, "host:2", both.digest) is None
    assert known.heard(ONE, "host:1", first.digest) == both


def test_another_master_that_knows_the_same_has_the_same_list():
    one, two = ShufflerList(state()), ShufflerList(state())
    one.heard(ONE, "host:1", 0)
    two.heard(TWO, "host:2", 0)
    assert one.heard(TWO, "host:2", 0).digest == two.heard(ONE, "host:1", 0).digest


def test_one_without_an_address_is_told_nothing():
    assert ShufflerList(state()).heard(ONE, "", 0) is None


def test_one_that_is_given_up_is_forgotten():
    job = state()
    known = ShufflerList(job)
    known.heard(TWO, "host:2", 0)
    job.handle(events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, 1), pid=1, signal="SIGKILL")), at=1.0)
    assert names(known.heard(ONE, "host:1", 0)) == ["worker-0.0"]


def test_the_next_life_takes_the_place_of_the_last():
    known = ShufflerList(state())
    known.heard(ONE, "host:1", 0)
    assert names(known.heard(LeaseHolder(0, 1), "host:9", 0)) == ["worker-0.1"]
