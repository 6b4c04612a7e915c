import pytest

from springtide import errors
from springtide.domain.plan.scale_plan import PlanStatus
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.operator import job_view, lifecycle, status_reports
from springtide.platforms.k8s.operator.lifecycle import DeleteJob, DeletePod, MakeMaster
from tests.unit.platforms.k8s import making

AT = 1_800_000_000.0


def operator_view(*pods, job=None, at=AT, foreign=(), **status):
    job = job or making.job(status=status)
    own = {each["metadata"]["name"]: each for each in pods}
    return job_view.OperatorView(job=job, site=making.SITE, at=at, pods=own, foreign=frozenset(foreign))


def master(**more):
    return making.pod("ctr-master", making.job(), role="master", **more)


def test_new_job_gets_a_master_and_its_prerequisites_first():
    (make,) = lifecycle.decide_master(operator_view()).steps
    assert isinstance(make, MakeMaster) and (make.number, make.in_a_row) == (1, 0)


def test_running_master_is_left_alone():
    assert lifecycle.decide_master(operator_view(master())).steps == ()
    assert lifecycle.master_condition(operator_view(master()), False, "").status is True


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_master_pod_that_ended_early_is_deleted_first(phase):
    (step,) = lifecycle.decide_master(operator_view(master(phase=phase))).steps
    assert isinstance(step, DeletePod) and step.uid == "u-ctr-master"


def test_restart_delay_of_short_lived_masters_grows():
    made = {"masters": 1, "masterMadeAt": kinds.timestamp(AT - 1), "mastersInARow": 0}
    *_, make = lifecycle.decide_master(operator_view(**made)).steps
    assert (make.number, make.in_a_row) == (2, 1)
    waits = lifecycle.decide_master(operator_view(**made | {"masters": 2, "mastersInARow": 1}))
    assert waits.steps == () and waits.again_s == pytest.approx(9)
    much = lifecycle.decide_master(operator_view(**made | {"masters": 30, "mastersInARow": 29}))
    assert much.again_s == pytest.approx(299)
    lasted = made | {"masterMadeAt": kinds.timestamp(AT - 601), "mastersInARow": 29}
    assert lifecycle.decide_master(operator_view(**lasted)).steps


def test_waiting_message_does_not_change_with_the_clock():
    made = {"masters": 5, "masterMadeAt": kinds.timestamp(AT), "mastersInARow": 4}
    said = {lifecycle.master_condition(operator_view(at=AT + s, **made), False, "").message for s in (1, 2, 3)}
    assert len(said) == 1 and "5 in a row ended early" in said.pop()


def test_master_on_an_unresponsive_node_is_forgotten():
    (step,) = lifecycle.decide_master(operator_view(master(deleted_at=kinds.timestamp(AT - 31)))).steps
    assert isinstance(step, DeletePod) and step.grace_s == 0
    assert lifecycle.decide_master(operator_view(master(deleted_at=kinds.timestamp(AT - 5)))).again_s == pytest.approx(
        25
    )


def test_pod_of_an_earlier_job_of_the_same_name_is_waited_for():
    decided = lifecycle.decide_master(operator_view(foreign=["ctr-master"]))
    assert decided.steps == () and decided.again_s
    assert lifecycle.master_condition(operator_view(foreign=["ctr-master"]), False, "").reason == "NameTaken"


def waiting_status(reason, message):
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize(
    ("status", "reason", "word"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]},
            "Unschedulable",
            "0/3",
        ),
        (waiting_status("ImagePullBackOff", "no such image"), "ImagePullBackOff", "no such image"),
        ({}, "Pending", "waits for a node"),
    ],
)
def test_reason_for_a_missing_master_is_in_the_job_status(status, reason, word):
    found = operator_view(master(phase="Pending", **status))
    change = status_reports.job_status(found, status_reports.StepOutcome(), PlanStatus())
    assert change["phase"] == "Pending" and word in change["message"]
    condition = next(each for each in change["conditions"] if each["type"] == "MasterRunning")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert [each.reason for each in status_reports.news({}, change)] == [reason]


def test_crash_looping_master_is_reported_with_its_last_line():
    status = waiting_status("CrashLoopBackOff", "back-off 5m0s")
    status["containerStatuses"][0]["lastState"] = {
        "terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback\nValueError: x"}
    }
    said = lifecycle.master_condition(operator_view(master(phase="Running", **status)), False, "")
    assert said.reason == "CrashLoopBackOff" and said.message.endswith("exit status 1, last line: ValueError: x")


def test_refusal_by_the_cluster_is_in_the_job_status():
    change = status_reports.job_status(
        operator_view(), status_reports.StepOutcome(master_refused="exceeded quota: pods=0"), PlanStatus()
    )
    assert change["message"] == "no master: exceeded quota: pods=0"


def test_phase_is_the_masters_once_it_runs():
    change = status_reports.job_status(
        operator_view(master(), phase="Running"), status_reports.StepOutcome(), PlanStatus()
    )
    assert "phase" not in change and "message" not in change


def test_unchanged_status_is_not_written():
    first = status_reports.job_status(operator_view(master()), status_reports.StepOutcome(), PlanStatus())
    again = operator_view(master(), at=AT + 60, job=making.job(status=first))
    assert status_reports.job_status(again, status_reports.StepOutcome(), PlanStatus()) is None


def test_finished_job_is_deleted_after_its_keep_time():
    status = {"phase": "Succeeded", "endedAt": kinds.timestamp(AT - 50)}
    keep = {"kubernetes": {"keepS": 60}}
    kept = lifecycle.decide_over(operator_view(job=making.job(spec=keep, status=status)))
    assert kept.steps == () and kept.again_s == pytest.approx(10)
    (step,) = lifecycle.decide_over(operator_view(at=AT + 10, job=making.job(spec=keep, status=status))).steps
    assert isinstance(step, DeleteJob)
    assert lifecycle.decide_over(operator_view(at=AT + 1e6, job=making.job(status=status))).steps == ()


def test_job_stopped_before_it_has_a_master_ends_at_once():
    stopped = making.job(spec={"stopped": True}, status={"phase": "Pending"})
    pod = making.pod("ctr-master", stopped, role="master", phase="Pending")
    assert (
        lifecycle.stopped_early(operator_view(pod, job=stopped))
        and lifecycle.decide_stopped(operator_view(pod, job=stopped)).steps
    )
    running = making.pod("ctr-master", stopped, role="master")
    assert not lifecycle.stopped_early(operator_view(running, job=stopped))
    assert status_reports.stopped(stopped, "enough", AT)["phase"] == "Stopped"


def test_invalid_spec_fails_a_job_unless_it_runs():
    new = status_reports.rejected({}, 1, "spec.workers.count: wanted 1 or more", AT)
    assert (new["phase"], new["conditions"][0]["status"]) == ("Failed", "False")
    runs = status_reports.rejected({"phase": "Running"}, 2, "bad", AT)
    assert "phase" not in runs and runs["conditions"][0]["message"] == "bad"


def test_stopped_job_ends_if_its_master_does_not_return():
    lost = {"type": "MasterRunning", "status": "False", "reason": "Unschedulable"}
    lost["lastTransitionTime"] = kinds.timestamp(AT - 50)
    spec = {"stopped": True, "kubernetes": {"pendingS": 60}}
    job = making.job(spec=spec, status={"phase": "Running", "conditions": [lost]})
    assert lifecycle.left_alone_s(operator_view(job=job)) == pytest.approx(10)
    assert lifecycle.left_alone_s(operator_view(job=job, at=AT + 10)) == 0
    back = making.job(spec=spec, status={"phase": "Running", "conditions": [lost | {"status": "True"}]})
    going_on = making.job(spec=spec | {"stopped": False}, status={"phase": "Running", "conditions": [lost]})
    for other in (back, going_on):
        assert lifecycle.left_alone_s(operator_view(job=other, at=AT + 1e6)) is None


def test_invalid_spec_edit_is_reported_and_the_last_valid_spec_used():
    first = status_reports.job_status(operator_view(master()), status_reports.StepOutcome(), PlanStatus())
    assert first["accepted"] == {"generation": 1, "spec": {"script": "train.py"}}
    job = making.job(spec={"slots": 1000, "stopped": True}, generation=2, status={"phase": "Running", **first})
    assert job.job.slots != 1000 and job.job.stopped, "that it is to stop is heard all the same"
    change = status_reports.job_status(operator_view(master(), job=job), status_reports.StepOutcome(), PlanStatus())
    said = next(each for each in change["conditions"] if each["type"] == "Accepted")
    assert said["status"] == "False" and "power of two" in said["message"] and "generation 1" in said["message"]
    assert "accepted" not in change and "phase" not in change
    with pytest.raises(errors.BadInput, match="power of two"):
        making.job(spec={"slots": 1000})
