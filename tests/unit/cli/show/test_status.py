"""Commands on finished or killed jobs, from the files of their runs."""

import json
import os
import time
from types import SimpleNamespace

import msgspec
import pytest

from springtide.cli import app
from springtide.cli.common import render
from springtide.cli.show import status
from springtide.domain.core.resources import GpuUse
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.rpc.messages.types import (
    CheckpointStatus,
    DataStatus,
    JobStatus,
    MasterStatus,
    MemberView,
    RoleCount,
    RoleStatus,
    TrainingStatus,
)
from springtide.telemetry import events, logs
from springtide.telemetry.logs import RunCard


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".springtide" / "runs"


def make_past_run(folder, name, *, began_at, status=None, told=(), agent_pid=1, agent_start=-1):
    """A finished run; without a status, one whose agent was killed."""
    files = logs.make_run(folder, name)
    card = RunCard(name=name, script="train.py", began_at=began_at, agent_pid=agent_pid, agent_start=agent_start)
    logs.write_card(files, card)
    story = events.EventLog(files.events)
    for kind, fields in told:
        story.write(kind, **fields)
    if status is not None:
        story.write("ended", status=msgspec.to_builtins(status))
    story.close()
    return files


FAILED = JobStatus(
    name="train",
    phase=JobPhase.FAILED,
    why="ValueError: no (train.py:3)",
    elapsed_s=3.0,
    blame=Blame.USER,
    data=DataStatus(shards_done=2, shards_total=55),
    master=MasterStatus(decision="fail", decision_why="the script raised"),
)
FINISHED = JobStatus(name="good", phase=JobPhase.FINISHED, why="all workers are done", elapsed_s=3.0, samples=1234)


def output(capsys, *arguments, code=0):
    """Run a command; lines of its output, all of at most 80 columns."""
    assert app.main([*arguments]) == code
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("{"))
    return lines


def test_status_shows_the_newest_job_by_default(folder, capsys):
    make_past_run(folder, "train", began_at=100.0, status=FAILED)
    make_past_run(folder, "good", began_at=200.0, status=FINISHED)
    assert output(capsys, "status")[0].startswith("job good finished in 3.0 s")
    lines = output(capsys, "status", "train")
    assert lines[0] == "ValueError: no (train.py:3)"
    assert "(2 of 55 shards)" in lines[1] and "decided fail: the script raised" in lines
    found = json.loads(*output(capsys, "status", "train", "--json"))
    assert (found["job"], found["running"], found["exit_code"], found["data"]["shards_total"]) == (
        "train",
        False,
        1,
        55,
    )


def test_second_run_of_a_name_has_a_numbered_name(folder, capsys):
    make_past_run(folder, "train", began_at=100.0, status=FAILED)
    again = msgspec.structs.replace(FINISHED, name="train", training=TrainingStatus(staleness=18, staleness_p50=5))
    make_past_run(folder, "train", began_at=200.0, status=again)
    first, second, *rest = output(capsys, "status")
    assert first.startswith("job train-2 finished") and second == "staleness 5 pushes at the median, 18 at most"
    assert "stale" not in " ".join(rest)


@pytest.mark.parametrize("phase", [JobPhase.FINISHED, JobPhase.STOPPED, JobPhase.FAILED])
@pytest.mark.parametrize("trouble", ["", "checkpoint 8 was not completed: no room"])
def test_last_checkpoint_of_a_finished_job_is_shown_once(folder, capsys, phase, trouble):
    ended = msgspec.structs.replace(FINISHED, phase=phase, checkpoints=CheckpointStatus(number=7, trouble=trouble))
    make_past_run(folder, "good", began_at=100.0, status=ended)
    (saved,) = [line for line in output(capsys, "status") if line.startswith("saved ")]
    assert "checkpoint 7" in saved


def test_rate_of_a_finished_job_is_equal_in_text_and_json(folder, capsys):
    ended = msgspec.structs.replace(FINISHED, training=TrainingStatus(trained_s=2.0, samples_per_s=99.0))
    make_past_run(folder, "good", began_at=100.0, status=ended)
    assert "617 samples/s" in output(capsys, "status")[0]
    assert json.loads(*output(capsys, "status", "--json"))["training"]["samples_per_s"] == 617.0


def test_all_jobs_are_listed_newest_first(folder, capsys):
    make_past_run(folder, "train", began_at=100.0, status=FAILED)
    make_past_run(folder, "good", began_at=200.0, status=FINISHED)
    lines = output(capsys, "status", "--all")
    assert [line.split()[:2] for line in lines[1:3]] == [["good", "finished"], ["train", "failed"]]
    assert [each["job"] for each in json.loads(*output(capsys, "status", "--all", "--json"))["jobs"]] == [
        "good",
        "train",
    ]


def test_misspelt_job_suggests_the_nearest(folder, capsys):
    make_past_run(folder, "train", began_at=100.0, status=FAILED)
    for verb in (["status"], ["events"], ["explain"], ["stop"], ["logs"], ["scale", "--workers", "2"]):
        assert app.main([*verb, "trian"]) == 2
        assert "no job named 'trian'. Did you mean 'train'?" in capsys.readouterr().err


def test_status_without_jobs_says_how_to_start_one(folder, capsys):
    assert app.main(["status"]) == 2
    assert "start one with `springtide run train.py`" in capsys.readouterr().err


def test_finished_job_cannot_be_controlled(folder, capsys):
    make_past_run(folder, "good", began_at=200.0, status=FINISHED)
    assert app.main(["scale", "good", "--workers", "2"]) == 2
    assert "job good does not run: finished" in capsys.readouterr().err
    assert app.main(["stop", "good"]) == 2


def test_job_with_a_killed_agent_is_not_shown_as_running(folder, capsys):
    told = [("phase", {"phase": "running", "why": "all there", "samples": 7})]
    make_past_run(folder, "train", began_at=100.0, told=told, agent_pid=os.getpid(), agent_start=1)
    lines = output(capsys, "status")
    assert lines[0] == "the command that ran the job was killed, which ended the job (it was running)"
    assert json.loads(*output(capsys, "status", "--json"))["samples"] == 7


def test_job_with_a_killed_agent_names_the_checkpoint_to_resume(folder, capsys):
    told = [
        ("phase", {"phase": "running", "why": "all there", "samples": 0}),
        ("checkpoint", {"number": 1, "outcome": "complete", "samples": 900}),
        ("checkpoint", {"number": 2, "outcome": "failed", "why": "disk full"}),
    ]
    make_past_run(folder, "train", began_at=100.0, told=told, agent_pid=os.getpid(), agent_start=1)
    shown = "\n".join(output(capsys, "status"))
    assert "900 samples" in shown and "saved   checkpoint 1, from which --resume continues" in shown


def test_events_shows_all_and_explain_only_those_with_a_reason(folder, capsys):
    told = [
        ("joined", {"role": "worker-1", "pid": 9}),
        ("phase", {"phase": "running", "why": "all servers are ready"}),
        ("exited", {"role": "worker-1", "how": "worker-1 (pid 9) was killed by SIGKILL"}),
        ("fenced", {"role": "worker-1", "incarnation": 0, "why": "it was killed"}),
        ("decision", {"what": "relaunch worker-1", "why": "it was killed; 2 relaunches are left"}),
        ("unreadable", {"role": "worker-0", "shard": 3, "first": 0, "offset": 20, "error": "OSError: gone"}),
        ("poisoned", {"shards": ["samples 20 to 30 of shard 3"]}),
        ("master_replaced", {"why": "master (pid 7) was killed by SIGKILL", "term": 2, "seconds": 0.61}),
        ("lost", {"role": "server-0", "incarnation": 0, "why": "killed"}),
        (
            "ready",
            {
                "role": "server-0",
                "checkpoint": 3,
                "where": "ckpt",
                "samples_again": 64_000,
                "unusable": ["checkpoint 4 in ckpt cannot be used: a.seg is missing"],
            },
        ),
        ("shorten", {"role": "worker-1", "shard": 5, "why": "worker-1 would need 9 s: others take the rest"}),
        ("shorten", {"role": "worker-1", "shard": 6, "why": "worker-1 would need 9 s: others take the rest"}),
        ("finished", {"role": "worker-0", "incarnation": 0}),
        ("fenced", {"role": "worker-0", "incarnation": 0, "why": "its script has ended"}),
        ("exited", {"role": "worker-0", "how": "worker-0 (pid 8) exited with status 0"}),
    ]
    make_past_run(folder, "train", began_at=100.0, told=told, status=FAILED)
    assert len(json.loads(*output(capsys, "events", "--json"))["events"]) == 16
    assert any("pid=9" in line for line in output(capsys, "events"))
    lines = output(capsys, "explain", "--json")
    story = [each["what"] for each in json.loads(lines[-1])["story"]]
    assert story == [
        "the job is running: all servers are ready",
        "worker-1 (pid 9) was killed by SIGKILL",
        "relaunch worker-1: it was killed; 2 relaunches are left",
        "worker-0 could not read shard 3 from 20 on: OSError: gone",
        "given up: samples 20 to 30 of shard 3",
        "master (pid 7) was killed by SIGKILL; a new master (term 2) listened 0.6 s later",
        "checkpoint 4 in ckpt cannot be used: a.seg is missing; "
        "server-0 is back with its slots of checkpoint 3 in ckpt; 64,000 samples are trained again",
        "worker-1 would need 9 s: others take the rest",
    ]


def test_explain_shows_when_a_job_planned_without_the_brain(folder, capsys):
    away = "planned without the brain: no brain at 10.0.0.5:7790 after 2 s"
    fields = {"outcome": "nothing", "why": "it has its size", "stage": "adjusting"}
    told = [("plan", {**fields, "notes": ["1 of 1 jobs"]}), ("plan", {**fields, "notes": [away]})]
    make_past_run(folder, "train", began_at=100.0, told=told, status=FAILED)
    story = [each["what"] for each in json.loads(output(capsys, "explain", "--json")[-1])["story"]]
    assert story == [
        f"unchanged: it has its size [adjusting]; {away}",
    ]


def test_explain_counts_repeated_decisions_and_leaves_out_those_that_changed_nothing(folder, capsys):
    told = [("phase", {"phase": "running", "why": "all servers are ready"})]
    for number in range(35):
        killed = {
            "what": f"relaunch worker-1 as incarnation {number + 1}",
            "why": f"worker-1 (pid {number}) was killed",
        }
        told += [
            ("feeding", {"data_workers": 0, "cpu": 0.0, "why": f"reading takes {number}% of a step"}),
            ("plan", {"outcome": "nothing", "why": f"gain {number} is not worth its cost", "stage": "adjusting"}),
            ("decision", killed),
        ]
    told += [
        ("plan", {"outcome": "taken", "shape": "2 workers", "why": "10 -> 19 samples/s"}),
        ("plan", {"outcome": "taken", "shape": "3 workers", "why": "19 -> 27 samples/s"}),
        ("decision", {"what": "relaunch worker-2 as incarnation 1", "why": "worker-2 (pid 99) was killed"}),
    ]
    make_past_run(folder, "train", began_at=time.time(), told=told, status=FAILED)
    lines = json.loads(*output(capsys, "explain", "--json"))["story"]
    assert [(line["what"], line["times"]) for line in lines if line["times"] > 1] == [
        ("relaunch worker-1 as incarnation 1: worker-1 (pid 0) was killed", 35)
    ]
    assert [line["what"].split(":")[0] for line in lines] == [
        "the job is running",
        "data workers",
        "relaunch worker-1 as incarnation 1",
        "planned",
        "planned",
        "relaunch worker-2 as incarnation 1",
    ]
    assert "35 times until" in " ".join(" ".join(output(capsys, "explain")).split())


def test_status_of_a_failed_job_names_the_file_with_the_traceback(folder, capsys):
    failed = {"role": "worker-1", "error": FAILED.why, "trace": "Traceback"}
    told = [("failed", {**failed, "role": "worker-0", "error": "the server has gone"}), ("failed", failed)]
    files = make_past_run(
        folder, "train", began_at=100.0, told=told, status=msgspec.structs.replace(FAILED, detail="Traceback")
    )
    log = os.path.relpath(files.logs / "worker-1.log")
    assert f"the traceback is in {log}" in output(capsys, "status")
    assert json.loads(*output(capsys, "status", "--json"))["trace"] == log


def test_finished_job_counts_its_roles_as_ended(folder, capsys):
    ended = msgspec.structs.replace(FINISHED, roles=RoleStatus(workers=RoleCount(0, 2), servers=RoleCount(3, 3)))
    make_past_run(folder, "good", began_at=100.0, status=ended)
    assert "roles   2 workers, 3 servers, master's term 0; all have ended" in output(capsys, "status")
    roles = json.loads(*output(capsys, "status", "--json"))["roles"]
    assert [roles[kind]["alive"] for kind in ("workers", "servers")] == [0, 0]


def test_unknown_job_leaves_standard_output_empty_for_json(folder, capsys):
    assert app.main(["status", "nope", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_status_shows_the_process_ids_of_a_running_job():
    role = Role(RoleKind.WORKER, 0)
    line = status.member_row(MemberView(role=role, alive=True, joined=True, pid=4711))
    assert line.split()[:4] == ["worker-0", "joined", "0", "4711"]


def test_logs_shows_the_last_lines_of_a_role(folder, capsys):
    files = make_past_run(folder, "train", began_at=100.0, status=FAILED)
    (files.logs / "worker-0.log").write_text("".join(f"line {number}\n" for number in range(30)))
    (files.logs / "worker-1.log").write_text("")
    assert output(capsys, "logs", "train", "worker-0", "--lines", "2")[1:] == ["line 28", "line 29"]
    assert "(empty)" in output(capsys, "logs")
    assert len(json.loads(*output(capsys, "logs", "--json"))["logs"]["worker-0"]) == 20
    assert app.main(["logs", "train", "worker-2"]) == 2
    assert "Did you mean 'worker-1'?" in capsys.readouterr().err


def test_event_log_in_progress_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"at":1.0,"event":"a"}\n{"at":2.0,"ev')
    assert [event["event"] for event in events.read(path)] == ["a"]
    assert events.read(tmp_path / "none.jsonl") == []


def test_far_more_workers_than_cores_need_confirmation(folder, capsys, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    make_past_run(folder, "train", began_at=100.0)
    assert app.main(["scale", "--data-workers", "9999"]) == 2
    assert "9999 data workers: this machine has 2 cores" in capsys.readouterr().err
    assert app.main(["scale", "--workers", "1000"]) != 0
    said = capsys.readouterr().err
    assert "1000 workers: this machine has 2 cores" in said and "--yes" in said
    assert app.main(["scale", "--workers", "1000", "--yes"]) != 0
    assert "does not run" in capsys.readouterr().err, "it is over, but the number is taken"


def test_gpu_columns_are_shown_only_for_gpu_jobs():
    def member(rank, gpu):
        role = Role(RoleKind.WORKER, rank)
        return MemberView(role=role, alive=True, joined=True, usage=RoleUsage(role=role, memory=1 << 30, gpu=gpu))

    reach = SimpleNamespace(name="a", places={}, platform="local")
    used = GpuUse(memory=3 << 30, allocated=2 << 30, total=80 << 30, busy=0.42)
    job = JobStatus(name="a", phase=JobPhase.RUNNING, why="", elapsed_s=3.0)
    lines = status.text(reach, msgspec.structs.replace(job, members=(member(0, used), member(1, None)))).splitlines()
    assert "gpu     busy 42% of the time, 3G of memory reserved, 2G in tensors" in lines
    assert lines[-3].split() == ["ROLE", "STATE", "LIFE", "PID", "CPU", "MEMORY", "GPU", "LIMITS"]
    assert [line.split()[-3:] for line in lines[-2:]] == [["42%", "3G/80G", "none"], ["1G", "-", "none"]]
    assert "gpu 42%" in render.line_of(msgspec.structs.replace(job, members=(member(0, used),)))
    assert "GPU" not in status.text(reach, msgspec.structs.replace(job, members=(member(1, None),)))
