import math

import msgspec
import pytest

from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.k8s.job import job_status
from springtide.rpc.messages.types import JobStatus, MasterStatus, RoleCount, RoleStatus, TrainingStatus


def roles(alive, wanted, lacks=""):
    return RoleStatus(workers=RoleCount(alive, wanted), servers=RoleCount(2, 2), lacks=lacks)


RUNNING = JobStatus(
    name="ctr",
    phase=JobPhase.RUNNING,
    why="all servers are ready",
    elapsed_s=12.5,
    samples=1000,
    training=TrainingStatus(samples_per_s=123.456, loss=0.5, metrics={"auc": 0.7}),
    roles=roles(3, 4),
    master=MasterStatus(decision="scale from 3 to 4 workers", decision_why="faster"),
)


def condition_statuses(status):
    return {each.type: each.status for each in job_status.conditions(status)}


def test_printed_columns_show_the_main_figures():
    fields = job_status.fields(RUNNING, generation=7)
    assert (fields["phase"], fields["workers"], fields["servers"]) == ("Running", "3/4", "2/2")
    assert (fields["samplesPerSecond"], fields["observedGeneration"]) == (123.5, 7)
    assert fields["decision"] == "scale from 3 to 4 workers: faster"


def test_status_fields_give_back_the_whole_status():
    failed = msgspec.structs.replace(RUNNING, phase=JobPhase.FAILED, blame=Blame.USER, detail="Traceback ...")
    for status in (RUNNING, failed):
        fields = msgspec.json.decode(msgspec.json.encode(job_status.fields(status, generation=1)))
        assert job_status.read(fields, "ctr", 5.0) == status
    for unread in ({}, {"report": {"nonsense": 1}}):
        new = job_status.read(unread, "ctr", 5.0)
        assert (new.name, new.phase, new.elapsed_s) == ("ctr", JobPhase.STARTING, 5.0)
        assert "check that the operator runs" in new.why


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (
            {"phase": "Stopped", "message": "its master did not come back"},
            (JobPhase.STOPPED, "its master did not come"),
        ),
        ({"message": "no master: no node takes it"}, (JobPhase.RUNNING, "no master: no node takes it")),
    ],
)
def test_operators_message_for_a_job_without_a_master_is_shown(since, expected):
    fields = job_status.fields(RUNNING, generation=1) | since
    fields["conditions"] = [{"type": "MasterRunning", "status": "False"}]
    found = job_status.read(fields, "ctr", 5.0)
    assert (found.phase, found.why[: len(expected[1])], found.samples) == (*expected, RUNNING.samples)


def test_non_finite_numbers_are_left_out_of_the_status():
    fields = job_status.fields(
        msgspec.structs.replace(
            RUNNING, training=msgspec.structs.replace(RUNNING.training, loss=math.nan, metrics={"a": math.inf})
        ),
        generation=1,
    )
    fields = msgspec.json.decode(msgspec.json.encode(fields))  # as the client sends it
    training = fields["report"]["training"]
    assert fields["loss"] is None and training["loss"] is None and training["metrics"] == {"a": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phase": JobPhase.STARTING, "roles": roles(0, 4)}, (False, True, False, False)),
        ({}, (True, True, True, False)),
        ({"roles": roles(4, 4)}, (True, False, False, False)),
        ({"roles": roles(3, 3, lacks="1 worker fewer than wanted")}, (True, False, True, False)),
        ({"phase": JobPhase.DRAINING}, (False, True, False, False)),
        ({"phase": JobPhase.FINISHED}, (False, False, False, True)),
    ],
)
def test_conditions_reflect_the_status(changes, expected):
    found = condition_statuses(msgspec.structs.replace(RUNNING, **changes))
    assert tuple(found[kind] for kind in ("Ready", "Progressing", "Degraded", "Finished")) == expected


def test_missing_roles_are_the_status_message():
    fields = job_status.fields(
        msgspec.structs.replace(RUNNING, roles=roles(3, 4, lacks="1 worker fewer")), generation=1
    )
    assert fields["message"] == "1 worker fewer"
