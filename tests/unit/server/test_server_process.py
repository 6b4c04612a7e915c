"""How a server process ends: quietly when it is told to, with an error when it has lost its master."""

import threading

import pytest

from springtide import errors
from springtide.domain.core.roles import Placement
from springtide.domain.spec.job_spec import JobSpec
from springtide.rpc.messages import messages
from springtide.server import __main__ as process
from springtide.server.server import ServerRole
from springtide.telemetry.host.usage import OwnUsage

SLOTS = 64


class MasterLink:
    """A link to a master that places all slots on server 0 and then does `then` to the heartbeat."""

    def __init__(self, then):
        self.then = then

    def start_heartbeat(self, every_s, beat, on_reply, on_lost):
        self.on_reply, self.on_lost = on_reply, on_lost

    def ask(self, request):
        assert isinstance(request, messages.ServerReady)
        self.then(self)
        return messages.PlacementReply(Placement(epoch=1, servers=1, server_of_slot=(0,) * SLOTS))


def serve(then):
    spec = JobSpec(name="job", slots=SLOTS)
    welcome = messages.ServerWelcome(spec=spec)
    role = ServerRole(index=0, slots=SLOTS, seed=0, workers=1, secret=b"secret")
    try:
        process.serve_job(role, MasterLink(then), welcome, threading.Event(), OwnUsage(process.config.Settings()))
    finally:
        role.stop()


def test_server_that_has_lost_its_master_ends_with_an_error():
    with pytest.raises(errors.JobFailed, match="no heartbeat reaches a master"):
        serve(lambda link: link.on_lost())


@pytest.mark.parametrize(("told", "why"), [("stop", "the job is over"), ("fenced", "continues without this process")])
def test_server_that_is_told_to_end_does_so_quietly_and_logs_why(told, why, caplog):
    with caplog.at_level("INFO"):
        serve(lambda link: link.on_reply(messages.HeartbeatReply(**{told: True})))
    assert why in caplog.text
