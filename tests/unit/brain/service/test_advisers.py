"""An unreachable, dying or lying brain gives an error of ours or a refused answer, never harm."""

import asyncio
import threading

import msgspec
import pytest

from springtide import errors
from springtide.brain.service import messages as brain_messages
from springtide.brain.service.advisers import AdviserThread, FailoverAdviser, RemoteAdviser
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.plan.view import PastJob
from springtide.rpc.messages import messages
from springtide.rpc.transport import frames
from tests import waiting
from tests.unit.brain.embedded_brain import SECRET, lying_brain
from tests.unit.planning import views


def ask_brain(answer, *, epoch=3, answer_s=5.0, **more):
    """Ask a brain that answers with `answer`, as a master does."""

    async def ask():
        async with lying_brain(answer, **more) as address:
            remote = RemoteAdviser(address, SECRET, answer_s=answer_s)
            try:
                return await remote.advise(views.running(), epoch=epoch, now=1.0)
            finally:
                await remote.close()

    return asyncio.run(ask())


def reply_with(reply):
    return lambda call: frames.pack(brain_messages.BrainReturn(call.id, reply))


def raw(body):
    return lambda call: frames.LENGTH.pack(len(body)) + body


def test_valid_advice_arrives():
    advice = Advice(epoch=3, why="so", plan=ShapePlan(job="job", shape=views.shape(), reason="because"))
    assert ask_brain(reply_with(brain_messages.Counsel(advice))) == advice


SHAPE = {"workers": 1, "servers": 1, "worker_cpu": 1.0, "server_cpu": 1.0}
LIES = {
    "no message": b"\xc1garbage",
    "a plan that is none": msgspec.msgpack.encode(
        [1, {"type": "Counsel", "advice": {"epoch": 3, "why": "so", "plan": {"job": "job", "shape": "huge"}}}]
    ),
    "no workers": msgspec.msgpack.encode(
        [
            1,
            {
                "type": "Counsel",
                "advice": {
                    "epoch": 3,
                    "why": "so",
                    "plan": {"job": "job", "reason": "more", "shape": SHAPE | {"workers": 0}},
                },
            },
        ]
    ),
    "cores that are no number": msgspec.msgpack.encode(
        [
            1,
            {
                "type": "Counsel",
                "advice": {
                    "epoch": 3,
                    "why": "so",
                    "plan": {"job": "job", "reason": "more", "shape": SHAPE | {"worker_cpu": float("nan")}},
                },
            },
        ]
    ),
    "no reason": msgspec.msgpack.encode([1, {"type": "Counsel", "advice": {"epoch": 3, "why": ""}}]),
}


@pytest.mark.parametrize("body", LIES.values(), ids=LIES)
def test_invalid_advice_bytes_raise_our_error(body):
    with pytest.raises(errors.BrainUnreachable, match="not a message"):
        ask_brain(raw(body))


def test_endless_frame_is_not_read():
    with pytest.raises(errors.BrainUnreachable, match="announced a frame of"):
        ask_brain(lambda call: frames.LENGTH.pack(2**31))


def test_answer_to_another_question_raises_our_error():
    with pytest.raises(errors.BrainUnreachable, match="answered with Ok to a consult"):
        ask_brain(reply_with(messages.Ok()))


def test_answer_with_another_number_is_ignored():
    with pytest.raises(errors.BrainUnreachable, match="no answer within"):
        ask_brain(lambda call: frames.pack(brain_messages.BrainReturn(call.id + 1, messages.Ok())), answer_s=-1.8)


def test_silent_brain_times_out():
    with pytest.raises(errors.BrainUnreachable, match="no answer within"):
        ask_brain(lambda call: None, answer_s=-1.8)


def test_brain_that_does_not_know_the_secret_is_not_asked():
    with pytest.raises(errors.BrainUnreachable, match="wrong secret"):
        ask_brain(reply_with(messages.Ok()), knows_secret=False)


def test_refusal_raises_the_error_it_names():
    with pytest.raises(errors.BadInput, match="not like that"):
        ask_brain(reply_with(messages.RequestRefused("BadInput", "not like that")))
    with pytest.raises(errors.BrainUnreachable, match="it broke"):
        ask_brain(reply_with(messages.RequestRefused("JobFailed", "it broke")))


def test_invalid_address_is_refused_at_once():
    with pytest.raises(errors.BadInput, match="expected host:port"):
        RemoteAdviser("nowhere", SECRET)


class LocalBrain:
    """A local brain that records its requests."""

    def __init__(self):
        self.asked, self.past = [], []

    async def advise(self, view, *, epoch, now):
        self.asked.append(now)
        return Advice(epoch=epoch, why="own")

    async def conclude(self, past):
        self.past.append(past)

    async def close(self):
        self.asked.append("closed")


class Brain(LocalBrain):
    """A brain that is reachable or not."""

    away = False

    async def advise(self, view, *, epoch, now):
        advice = await super().advise(view, epoch=epoch, now=now)
        if self.away:
            raise errors.BrainUnreachable("it is away")
        return advice

    async def conclude(self, past):
        if self.away:
            raise errors.BrainUnreachable("it is away")
        self.past.append(past)


def test_job_plans_itself_without_the_brain_and_retries_less_often():
    brain, own = Brain(), LocalBrain()
    either = FailoverAdviser(brain, own)

    async def run():
        async def ask(now):
            return await either.advise(views.running(), epoch=0, now=now)

        assert (await ask(0.0)).notes == ()
        brain.away = True
        for now in range(1, 31):
            advice = await ask(float(now))
            assert advice.why == "own" and advice.notes == ("planned without the brain: it is away",)
        assert brain.asked == [0.0, 1.0, 2.0, 7.0, 22.0] and len(own.asked) == 30
        await either.conclude(PastJob(name="job"))
        assert not brain.past and not own.past, "it ended as a sample"
        await either.conclude(PastJob(name="job", shape=views.shape()))
        assert not brain.past and own.past
        brain.away = False
        assert (await ask(90.0)).notes == ()
        await either.conclude(PastJob(name="job"))
        assert brain.past
        await either.close()

    asyncio.run(run())
    assert brain.asked[-1] == own.asked[-1] == "closed"


def test_unresponsive_brain_leaves_time_to_record_the_job_locally(monkeypatch):
    class Silent(Brain):
        async def conclude(self, past):
            await asyncio.Event().wait()

    monkeypatch.setattr("springtide.brain.service.advisers.REMEMBER_S", 0.01)
    own = LocalBrain()
    asyncio.run(FailoverAdviser(Silent(), own).conclude(PastJob(name="job", shape=views.shape())))
    assert own.past


class BlockingAdviser:
    """Blocks its event loop until released and records its thread."""

    def __init__(self):
        self.ran_in, self.let_go = None, threading.Event()

    async def advise(self):
        self.ran_in = threading.current_thread()
        self.let_go.wait(30)
        return Advice(epoch=1, why="at last")


async def fail():
    raise errors.HistoryUnavailable("the disk is gone")


def test_blocking_adviser_does_not_block_the_loop_and_gets_no_new_request():
    async def test():
        adviser, thread = BlockingAdviser(), AdviserThread()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await thread.run(adviser.advise)
        await waiting.soon(lambda: adviser.ran_in)
        assert adviser.ran_in is not threading.current_thread()
        with pytest.raises(errors.TemporaryError, match="still busy with the previous request"):
            await thread.run(adviser.advise)
        adviser.let_go.set()
        assert (await thread.run(adviser.advise, wait=True)).why == "at last"
        thread.stop()

    asyncio.run(test())


def test_waiting_call_runs_after_the_current_one():
    async def test():
        adviser, thread = BlockingAdviser(), AdviserThread()
        asked = asyncio.create_task(thread.run(adviser.advise))
        await waiting.soon(lambda: adviser.ran_in)
        told = asyncio.create_task(thread.run(fail, wait=True))
        await asyncio.sleep(0)
        assert not told.done()
        adviser.let_go.set()
        with pytest.raises(errors.HistoryUnavailable, match="the disk is gone"):
            await told
        assert (await asked).why == "at last"
        thread.stop()

    asyncio.run(test())


def test_unused_adviser_thread_stops_at_once():
    AdviserThread().stop()
