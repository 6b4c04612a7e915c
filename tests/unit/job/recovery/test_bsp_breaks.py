"""What losses have cost a bsp group, as its job saw them: how many workers, and how long it did not train."""

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import events
from springtide.job.state import JobState

SERVER, WORKERS = Role(RoleKind.SERVER, 0), [Role(RoleKind.WORKER, rank) for rank in range(2)]


def formed(state, lives, *, at):
    """Everyone has called in, and the workers are a group."""
    for role, life in zip((SERVER, *WORKERS), lives, strict=True):
        state.handle(events.RoleJoined(role, life, pid=life), at=at)
        if role == SERVER:
            state.handle(events.RoleReady(role, f"host:{life}", life), at=at)
    state.handle(
        events.GroupFormed(
            tuple(LeaseHolder(role.rank, life) for role, life in zip(WORKERS, lives[1:], strict=True)), ""
        ),
        at=at,
    )
    state.check()


def trained():
    """A job whose group was formed after 8 s, and has a checkpoint."""
    state = JobState(JobSpec(name="job", servers=1, workers=2, sync="bsp", relaunches=9))
    formed(state, (0, 0, 0), at=8)
    state.handle(events.CheckpointSaved(1), at=20)
    return state, state.safety.breaks


def lose(state, role, life, *, at):
    state.handle(events.RoleExited(RoleExit(role=role, pid=life, signal="SIGKILL", incarnation=life)), at=at)


def test_before_anything_is_lost_a_return_is_thought_to_take_what_the_start_took():
    _, breaks = trained()
    assert (breaks.losses, breaks.return_s, breaks.watched_s(108)) == (0, 8, 100)


def test_a_return_takes_what_returns_took_and_not_the_wait_for_one_worker_that_there_is_anyway():
    state, breaks = trained()
    lose(state, WORKERS[1], 0, at=30)
    formed(state, (0, 0, 1), at=33)
    assert (breaks.losses, breaks.waits, breaks.return_s) == (1, 1, 8 - 3)
    lose(state, WORKERS[1], 1, at=40)
    state.handle(events.GroupLost("rows that only its cache had were lost with it"), at=41)
    assert breaks.losses == 2, "one worker was lost; that all begin anew is no loss of theirs"
    formed(state, (1, 1, 2), at=55)
    assert (breaks.losses, breaks.returns, breaks.return_s) == (2, 1, 15 - 3)
    lose(state, SERVER, 1, at=70)
    formed(state, (2, 2, 3), at=81)
    assert (breaks.losses, breaks.returns) == (2, 2), "a lost server takes the group back too"
    assert breaks.return_s == pytest.approx((15 + 11) / 2 - 3)


def test_a_group_that_is_formed_anew_to_scale_has_lost_nobody():
    state, breaks = trained()
    state.handle(events.WorkersScaled(1, "asked"), at=30)
    state.handle(events.GroupFormed((LeaseHolder(0),), "between two shards"), at=31)
    assert (breaks.losses, breaks.waits, breaks.returns) == (0, 0, 0)
