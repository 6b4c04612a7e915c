"""Jobs of this machine, from outside."""

import os

from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.agent.job_handle import LogLine
from springtide.platforms.local import job_handle
from springtide.platforms.local.job_handle import LocalJobHandle
from springtide.telemetry import events, logs
from springtide.telemetry.logs import LogTail, RunCard


def reach_of(folder, *, running):
    files = logs.make_run(folder, "train")
    pid = os.getpid()
    start = logs.start_of(pid) if running else -1
    logs.write_card(files, RunCard(name="train", script="t.py", began_at=1.0, agent_pid=pid, agent_start=start))
    (run,) = logs.find_runs(folder)
    return LocalJobHandle(run)


def test_growing_log_is_read_line_by_line_and_once(tmp_path):
    path = tmp_path / "worker-0.log"
    tail = LogTail(path)
    assert tail.more() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.more() == ["one", "two"]
    with path.open("ab") as file:
        file.write(b"ee\n\xff\n")
    assert tail.more() == ["three", "\ufffd"] and tail.more() == []


def test_logs_of_all_roles_are_followed_until_the_job_is_over(tmp_path, monkeypatch):
    reach = reach_of(tmp_path, running=True)
    folder = reach.run.files.logs
    (folder / "worker-0.log").write_text("".join(f"line {number}\n" for number in range(5)))

    def meanwhile(_):
        (folder / "worker-1.log").write_text("joined\n")
        with (folder / "worker-0.log").open("a") as file:
            file.write("last words\n")
        reach.run = logs.JobRun(reach.run.files, RunCard(name="train", script="t.py", began_at=1.0))

    monkeypatch.setattr(job_handle.time, "sleep", meanwhile)
    assert list(reach.logs([], lines=2, follow=True)) == [
        LogLine("worker-0", "line 3"),
        LogLine("worker-0", "line 4"),
        LogLine("worker-0", "last words"),
        LogLine("worker-1", "joined"),
    ]


def test_logs_of_one_role_exclude_other_roles(tmp_path):
    reach = reach_of(tmp_path, running=False)
    for role in ("worker-0", "worker-1"):
        (reach.run.files.logs / f"{role}.log").write_text(f"I am {role}\n")
    assert list(reach.logs(["worker-1"], lines=5, follow=True)) == [LogLine("worker-1", "I am worker-1")]
    assert reach.roles() == ["worker-0", "worker-1"] and not reach.running()


def write_phases(reach, *phases):
    """A story of these phases, without its last line."""
    story = events.EventLog(reach.run.files.events)
    for phase in phases:
        story.write("phase", phase=phase, why=f"it is {phase}", samples=7)
    story.close()


def test_unfinished_status_file_is_completed_from_the_event_log(tmp_path):
    reach = reach_of(tmp_path, running=False)
    write_phases(reach, "running", "finished")
    assert (reach.status().phase, reach.status().why, reach.status().samples) == (
        JobPhase.FINISHED,
        "it is finished",
        7,
    )


def test_job_killed_while_running_counts_as_failed(tmp_path):
    reach = reach_of(tmp_path, running=False)
    write_phases(reach, "running")
    assert reach.status().phase is JobPhase.FAILED
    assert reach.status().why == "the command that ran the job was killed, which ended the job (it was running)"
