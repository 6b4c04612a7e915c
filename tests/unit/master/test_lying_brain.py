"""A lying brain over a real connection: the job keeps its shape and logs the reason."""

import asyncio
from dataclasses import replace

import pytest

from springtide import errors
from springtide.brain.service import messages as brain_messages
from springtide.brain.service.advisers import EmbeddedAdviser, FailoverAdviser, RemoteAdviser
from springtide.domain.core.shape import Shape
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.planning.policy import acceptance
from springtide.rpc.messages import messages
from springtide.rpc.transport import frames
from tests.unit.brain.embedded_brain import SECRET, lying_brain
from tests.unit.master.autoscale.test_loop import CONFIG, LARGER, RULES, SMALL, World
from tests.unit.planning import views


def reply_bytes(make):
    """Bytes of a reply that `make(consult)` gives."""
    return lambda call: frames.pack(brain_messages.BrainReturn(call.id, make(call.body)))


def plan(consult, **more):
    fields = {"job": consult.view.name, "shape": LARGER, "reason": "trust me"} | more
    return brain_messages.Counsel(Advice(epoch=consult.epoch, why="trust me", plan=ShapePlan(**fields)))


def stale(consult):
    return brain_messages.Counsel(replace(plan(consult).advice, epoch=consult.epoch - 1))


HUGE = Shape(workers=4, servers=2, worker_cpu=1.0, server_cpu=1.0)  # within bounds, over the quota of 2 cores
LIES = {
    "over quota": (lambda consult: plan(consult, shape=HUGE), "not within the job's bounds or quota"),
    "out of bounds": (lambda consult: plan(consult, shape=replace(LARGER, workers=99)), "not within the job's bounds"),
    "tiny": (lambda consult: plan(consult, shape=replace(LARGER, worker_cpu=1e-9)), "not within the job's bounds"),
    "another job's": (lambda consult: plan(consult, job="other"), "it is for job other; this is job-2"),
    "of the past": (stale, "the advice is for an earlier state of the job"),
    "no change": (lambda consult: plan(consult, shape=consult.view.shape), "it changes nothing"),
    "another answer": (lambda consult: messages.Ok(), "answered with Ok to a consult"),
    "a refusal": (lambda consult: messages.RequestRefused("JobFailed", "I do not like you"), "I do not like you"),
}


@pytest.mark.parametrize(("lie", "why"), LIES.values(), ids=LIES)
def test_invalid_brain_answer_changes_nothing_and_is_logged(tmp_path, lie, why):
    async def run():
        async with lying_brain(reply_bytes(lie)) as address:
            remote = RemoteAdviser(address, SECRET)
            world = await World(tmp_path, remote).begin()
            try:
                await world.train(12)
                status = world.desk.status()
                return status.planning.shape, status.planning.target, world.told()
            finally:
                await world.end()

    shape, target, told = asyncio.run(run())
    assert shape == SMALL and target is None
    assert {one["outcome"] for one in told} <= {"refused", "nothing", "failed"}
    assert any(why in one["why"] for one in told), [one["why"] for one in told]


GARBAGE = {
    "garbage": lambda call: b"\0\0\0\x05\xc1\xc1\xc1\xc1\xc1",
    "a plan that is none": lambda call: frames.pack(
        [call.id, {"type": "Counsel", "advice": {"epoch": 0, "why": "x", "plan": {"job": "job-2", "shape": []}}}]
    ),
    "a frame without end": lambda call: frames.LENGTH.pack(2**31),
    "nonsense in the place of an advice": lambda call: frames.pack([call.id, {"type": "Counsel", "advice": 7}]),
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_job_plans_by_itself_when_the_brain_sends_garbage(tmp_path, answer):
    async def run():
        async with lying_brain(answer) as address:
            either = FailoverAdviser(RemoteAdviser(address, SECRET), EmbeddedAdviser("", CONFIG, RULES.bounds.quota))
            advice = await either.advise(views.running(), epoch=0, now=0.0)
            await either.close()
            return advice

    advice = asyncio.run(run())
    assert (advice.notes[0].startswith("planned without the brain: ") and "not a message" in advice.notes[0]) or (
        "announced a frame of" in advice.notes[0]
    )
    assert acceptance.refused(advice, views.running(), CONFIG, epoch=0, now=0.0) == "" or advice.plan is not None


def test_valid_brain_plan_is_applied(tmp_path):
    def honest(consult):
        if consult.view.shape == LARGER or not consult.view.profiles:
            return brain_messages.Counsel(Advice(epoch=consult.epoch, why="as it should be"))
        return plan(consult)

    async def run():
        async with lying_brain(reply_bytes(honest)) as address:
            world = await World(tmp_path, RemoteAdviser(address, SECRET)).begin()
            try:
                await world.train(30)
                return world.desk.status().planning.shape
            finally:
                await world.end()

    assert asyncio.run(run()) == LARGER


def test_answer_to_an_earlier_brain_request_is_refused():
    """The brain is silent first, and answers the second request with the first one's plan."""
    held = []

    def late(call):
        held.append(call)
        return frames.pack(brain_messages.BrainReturn(call.id, plan(held[0].body))) if len(held) > 1 else None

    async def run():
        async with lying_brain(late) as address:
            hasty, patient = RemoteAdviser(address, SECRET, connect_s=1.0, answer_s=0.0), RemoteAdviser(address, SECRET)
            with pytest.raises(errors.BrainUnreachable, match="no answer within"):
                await hasty.advise(views.running(), epoch=1, now=0.0)
            held[:] = held or [
                brain_messages.BrainCall(1, brain_messages.Consult(views.running(), 1, 0.0))
            ]  # it may not have got there
            again = await patient.advise(views.running(), epoch=2, now=1.0)
            await patient.close()
            return again

    refused = acceptance.refused(asyncio.run(run()), views.running(), CONFIG, epoch=2, now=1.0)
    assert refused == "the advice is for an earlier state of the job (epoch 1, now 2)"
