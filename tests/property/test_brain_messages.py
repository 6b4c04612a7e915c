"""Views, advice and past jobs survive the way to a brain and back; other bytes are refused."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from springtide.brain.decide import cluster_state
from springtide.brain.service import messages
from springtide.brain.service.executor_pool import PolicyQuery
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.rpc.transport import frames
from tests.unit.brain.store.test_store import any_past_job
from tests.unit.planning import views

QUERIES = msgspec.msgpack.Decoder(PolicyQuery)
ANY = st.floats()
plans = st.builds(
    ShapePlan,
    job=st.text(max_size=9),
    shape=views.shapes(),
    reason=st.text(min_size=1, max_size=9),
    gain=st.floats(allow_nan=False),
    cost=st.floats(0, 1e9),
    throughput=st.none() | st.floats(allow_nan=False),
    stage=st.none() | st.sampled_from(PlanningStage),
)
advices = st.builds(
    Advice,
    epoch=st.integers(0, 2**40),
    why=st.text(min_size=1, max_size=9),
    plan=st.none() | plans,
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)
requests = st.one_of(
    st.builds(messages.Consult, view=views.jobs("job"), epoch=st.integers(0, 2**40), now=ANY, key=st.text(max_size=9)),
    st.builds(messages.ConcludeJob, past=any_past_job(), key=st.text(max_size=9)),
    st.just(messages.Inspect()),
    st.builds(messages.ResizeExecutors, executors=st.integers(-5, 500)),
)


def round_trip(message, decoder):
    packed = frames.pack(message)
    return packed, frames.unpack(packed[frames.LENGTH.size :], decoder)


@given(st.builds(messages.BrainCall, st.integers(0, 2**40), requests))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_requests_of_a_master_survive_the_wire(call):
    _, read = round_trip(call, messages.CALLS)
    packed, again = round_trip(read, messages.CALLS)
    assert frames.pack(again) == packed
    assert read == call or "nan" in repr(call)  # which is not like itself


@given(st.integers(0, 2**40), advices)
def test_advice_of_the_brain_survives_the_wire(number, advice):
    _, read = round_trip(messages.BrainReturn(number, messages.Counsel(advice)), messages.BRAIN.returns)
    assert read.id == number and read.body.advice == advice


@given(any_past_job())
def test_past_job_survives_the_wire(past):
    _, read = round_trip(messages.BrainCall(1, messages.ConcludeJob(past)), messages.CALLS)
    assert read.body.past == past


@given(views.clusters())
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_whole_cluster_view_reaches_an_executor(view):
    _, read = round_trip(PolicyQuery("springtide", view, PlanningConfig()), QUERIES)
    assert [job.name for job in read.view.jobs] == [job.name for job in view.jobs]
    assert len(read.view.history) == len(view.history) and read.config == PlanningConfig()


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    for decoder in (messages.CALLS, messages.BRAIN.returns, QUERIES):
        with pytest.raises(frames.BadFrame):
            frames.unpack(data, decoder)


@given(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9), st.text(max_size=9))
def test_jobs_of_one_name_are_distinguished_by_key(key, other, job):
    known = cluster_state.JobNames()
    mine = known.of(job, key)
    assert mine != job == known.of(job, "")
    assert (mine == known.of(job, other)) is (key == other)
    assert known.of(f"{job}-2", key) == mine  # a run may be named when it starts
    later = cluster_state.JobNames()
    later.restore([mine])
    assert later.of("another", key) == mine
    later.forget(mine)
    assert later.of("another", key) != mine or job == "another"
