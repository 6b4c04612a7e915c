"""Whatever happens in whatever order, a job ends once, with a reason, and its invariants hold."""

import hypothesis.strategies as st
from hypothesis import given

from springtide import errors
from springtide.domain.cluster import Role, RoleExit, RoleKind
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.job import actions, events
from springtide.job.state import JobState

SPEC = JobSpec(name="job", servers=2, workers=2, join_s=20, silence_s=8)
servers = st.integers(0, 1).map(lambda rank: Role(RoleKind.SERVER, rank))
workers = st.integers(0, 1).map(lambda rank: Role(RoleKind.WORKER, rank))
roles = servers | workers
exits = st.builds(RoleExit, role=roles, pid=st.just(1), code=st.sampled_from([0, 1])) | st.builds(
    RoleExit, role=roles, pid=st.just(1), code=st.none(), signal=st.just("SIGKILL")
)
anything = st.one_of(
    st.builds(events.Joined, roles),
    st.builds(events.Ready, servers, st.just("host:1")),
    st.builds(events.Heard, roles),
    st.builds(events.Finished, workers),
    st.builds(
        events.Failed, workers, st.just("Error"), st.just(""), st.sampled_from([Blame.USER, Blame.INFRASTRUCTURE])
    ),
    st.builds(events.Gone, exits),
    st.builds(events.HungUp, roles),
    st.just(events.StopAsked("Ctrl-C")),
    st.just(events.Tick()),
)


@given(st.lists(st.tuples(anything, st.floats(0, 3)), max_size=60))
def test_every_history_keeps_the_invariants_and_ends_at_most_once(history):
    state, now, ends = JobState(SPEC), 0.0, []
    for event, pause_s in history:
        now += pause_s
        try:
            done = state.handle(event, at=now)
        except errors.SpringtideError:
            done = []  # a message that cannot be: refused, and nothing has changed
        ends += [action for action in done if isinstance(action, actions.Conclude)]
        state.check()
    assert len(ends) == state.phase.over
    if ends:
        assert (ends[0].phase, ends[0].why) == (state.phase, state.why)
        assert state.why or state.phase is Phase.FINISHED
