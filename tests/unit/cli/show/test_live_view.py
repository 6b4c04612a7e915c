"""Display of a job while it runs and at its end."""

import io

import msgspec
import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from springtide.cli.common import render
from springtide.cli.show import job_drawings, live_panel, live_view, plain_view
from springtide.cli.show.job_drawings import SeenProgress
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.data_workers import FeedState
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import (
    CheckpointStatus,
    DataStatus,
    EpochProgress,
    JobStatus,
    MasterStatus,
    MemberView,
    RoleCount,
    RoleStatus,
    TrainingStatus,
)
from springtide.telemetry.logs import SCRIPT_RAISED, make_run

STATUS = JobStatus(
    name="train",
    phase=JobPhase.RUNNING,
    why="",
    elapsed_s=12.34,
    samples=1_234_567,
    members=(
        MemberView(Role(RoleKind.SERVER, 0), alive=True, joined=True),
        MemberView(Role(RoleKind.WORKER, 0), alive=True, joined=True),
        MemberView(Role(RoleKind.WORKER, 1), alive=False, joined=False),
    ),
    training=TrainingStatus(trained_s=10.0, samples_per_s=98_765.4, loss=0.45678, metrics={"auc": 0.78901}),
    data=DataStatus(shards_done=1234, shards_leased=2, shards_total=5678),
)


def test_status_line_fits_80_columns():
    whole = msgspec.structs.replace(STATUS, roles=RoleStatus(workers=RoleCount(alive=2, wanted=2)))
    assert render.line_of(whole) == "  12.3 s  running  shards 1234/5678  98.8k/s  loss 0.4568  auc 0.7890"
    many = msgspec.structs.replace(
        whole, training=msgspec.structs.replace(whole.training, metrics={"auc": 0.5, "best_auc": 0.6, "test_auc": 0.7})
    )
    assert len(render.line_of(many)) <= 80 and "auc 0.5000" in render.line_of(many)


def test_status_line_shows_missing_roles_before_metrics():
    assert render.line_of(STATUS) == "  12.3 s  running  shards 1234/5678  98.8k/s  loss 0.4568  workers 1/2"
    served = msgspec.structs.replace(
        STATUS, roles=RoleStatus(workers=RoleCount(alive=2, wanted=2), servers=RoleCount(alive=1, wanted=3))
    )
    assert render.line_of(served).endswith("loss 0.4568  servers 1/3")
    assert "/3" not in render.line_of(msgspec.structs.replace(served, phase=JobPhase.FAILED))


def test_epochs_are_shown_as_their_number():
    twice = msgspec.structs.replace(STATUS, data=msgspec.structs.replace(STATUS.data, epochs=2))
    assert render.shards_text(twice) == "1,234 of 5,678 done, 2 leased, 2 epochs"
    assert "epoch" not in render.shards_text(STATUS)


def test_short_status_line_shows_more():
    quiet = msgspec.structs.replace(
        STATUS,
        data=msgspec.structs.replace(STATUS.data, shards_done=1, shards_total=2),
        training=msgspec.structs.replace(STATUS.training, metrics={}, loss=None, samples_per_s=9),
    )
    assert render.line_of(quiet) == "  12.3 s  running  shards 1/2  1.2M samples  9/s  workers 1/2"


def test_counts_are_integers_and_measures_have_decimals():
    shown = {name: render.show(name, value) for name, value in {"lost": 0.0, "counted": 1.0, "test_auc": 1.0}.items()}
    assert shown == {"lost": "0", "counted": "1", "test_auc": "1.0000"}
    assert (render.show("repeated", 12345.0), render.show("ctr", 0.25)) == ("12,345", "0.2500")


def test_draining_job_names_the_workers_still_running():
    workers = [MemberView(Role(RoleKind.WORKER, rank), True, True, state="joined") for rank in range(2)]
    draining = msgspec.structs.replace(
        STATUS,
        phase=JobPhase.DRAINING,
        members=tuple(workers[:1]),
        training=msgspec.structs.replace(STATUS.training, metrics={}),
    )
    assert "script" not in render.line_of(draining), "leases are still being trained"
    ending = msgspec.structs.replace(draining, data=msgspec.structs.replace(draining.data, shards_leased=0))
    assert "worker-0's script still runs" in render.line_of(ending)
    both = msgspec.structs.replace(ending, members=tuple(workers))
    assert "2 scripts still run" in render.line_of(both)


@given(
    st.dictionaries(st.text("abc_", min_size=1, max_size=12), st.floats(0, 1), max_size=6),
    st.integers(0, 10**12),
    st.integers(0, 10**7),
    st.floats(0, 1e6),
    st.sampled_from(JobPhase),
)
def test_no_line_is_wider_than_80_columns(metrics, samples, shards, elapsed, phase):
    shown = msgspec.structs.replace(
        STATUS,
        samples=samples,
        elapsed_s=elapsed,
        phase=phase,
        training=msgspec.structs.replace(STATUS.training, metrics=metrics),
        data=msgspec.structs.replace(STATUS.data, shards_done=shards, shards_total=shards),
    )
    assert len(render.line_of(shown)) <= 80


DECIDED = msgspec.structs.replace(
    STATUS,
    master=MasterStatus(
        term=2,
        decision="relaunch worker-1 as incarnation 1",
        decision_why="worker-1 (pid 4711) was killed by SIGKILL for lack of memory; its memory is doubled from 1G "
        "to 2G",
    ),
    roles=RoleStatus(relaunches=1, workers=RoleCount(alive=1, wanted=2)),
)


def test_decision_and_reason_are_shown_once_in_80_columns(tmp_path, capsys):
    shown = plain_view.PlainView([], plain_view.WorkerOutput(make_run(tmp_path, "train")))
    shown.update(DECIDED)
    shown.update(DECIDED)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).count("relaunch worker-1") == 1 and "doubled from 1G to 2G" in lines[1]


def test_failing_checkpoints_are_reported_at_the_start_and_end_of_the_trouble(tmp_path, capsys):
    shown = plain_view.PlainView([], plain_view.WorkerOutput(make_run(tmp_path, "train")))
    troubles = [f"checkpoint {number} was not completed: no space left" for number in (4, 5, 6)]
    for number, trouble in enumerate(["", *troubles, "", ""]):
        saved = 3 if trouble else 3 + number
        shown.update(msgspec.structs.replace(STATUS, checkpoints=CheckpointStatus(number=saved, trouble=trouble)))
    told = [line for line in capsys.readouterr().err.splitlines() if "saved" in line]
    assert told == [
        "  12.3 s  saved: checkpoint 3; checkpoint 4 was not completed: no space left",
        "  12.3 s  saved: checkpoint 7 is complete, checkpoints work again",
    ]
    troubled = msgspec.structs.replace(STATUS, checkpoints=CheckpointStatus(trouble=troubles[0]))
    assert "no checkpoint yet; checkpoint 4 was not completed" in panel_text(troubled)


def test_live_view_shows_the_last_decision_and_reason():
    text = panel_text(DECIDED)
    assert max(map(len, text.splitlines())) <= 80
    assert (
        "1/2 workers" in text and "1 relaunched, master's term 2" in text and "decided" in text and "1G to 2G" in text
    )


def test_live_view_fits_80_columns():
    text = panel_text(msgspec.structs.replace(STATUS, data=DataStatus(epoch=EpochProgress(3, 25, 100))))
    assert max(map(len, text.splitlines())) <= 80
    for part in ("train  running 0:12  1.2M samples  98.8k/s  loss 0.4568  auc 0.7890", "epoch 3 ", " 25%  0:00 left"):
        assert part in text
    assert "1/2 workers, 1/1 servers" in text


def test_lines_of_the_script_stay_whole_above_the_panel(tmp_path, monkeypatch):
    """On a terminal in memory: a long line, colours, a progress bar of the script, and the panel once, at the foot."""
    monkeypatch.setattr(live_panel, "REDRAW_S", 1e-9)
    files, screen = make_run(tmp_path, "train"), pyte.Screen(80, 24)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system="standard", _environ={})
    long = "0123456789" * 12
    with live_panel.LivePanel(console, ["job train: 1 server"], plain_view.WorkerOutput(files)) as shown:
        for number in range(5):
            shown.update(msgspec.structs.replace(STATUS, samples=number * 1000))
            with files.log_of(Role(RoleKind.WORKER, 0)).open("a") as log:
                log.write(f"batch {number} \x1b[31mred\x1b[0m\n10%\r50%\r{number}00%\n")
        with files.log_of(Role(RoleKind.WORKER, 0)).open("a") as log:
            log.write(f"{long}\n")
        shown.update(STATUS)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display]
    assert [line for line in lines if line.startswith("batch")] == [f"batch {number} red" for number in range(5)]
    assert lines[0] == "job train: 1 server" and "400%" in lines and not any("50%" in line for line in lines)
    assert "".join(lines[lines.index(long[:80]) : lines.index(long[:80]) + 2]) == long
    assert sum("train  running" in line for line in lines) == 1 and lines.index(long[:80]) < lines.index("─" * 80)


@pytest.mark.parametrize(("plain", "terminal"), [(True, "xterm"), (False, "dumb")])
def test_plain_lines_are_an_option_and_the_only_choice_of_a_dumb_terminal(tmp_path, monkeypatch, plain, terminal):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", terminal)
    plan = RunPlan(spec=JobSpec(name="train"), script="train.py")
    assert type(live_view.open_view(plan, make_run(tmp_path, "train"), plain=plain)) is plain_view.PlainView
    monkeypatch.setenv("TERM", "xterm")
    assert type(live_view.open_view(plan, make_run(tmp_path, "train"))) is live_panel.LivePanel


def test_script_output_is_followed_up_to_its_traceback(tmp_path):
    files = make_run(tmp_path, "train")
    follow = plain_view.WorkerOutput(files)
    assert follow.lines() == []
    log = files.log_of(Role(RoleKind.WORKER, 0))
    log.write_text("epoch 1\nepo")
    assert follow.lines() == ["epoch 1"]
    with log.open("a") as file:
        file.write(f"ch 2\n{SCRIPT_RAISED}\nTraceback\n")
    assert follow.lines() == ["epoch 2"]
    with log.open("a") as file:
        file.write("more of it\n")
    assert follow.lines() == []


def test_outcome_of_a_failure_begins_with_the_error(tmp_path):
    files = {"logs": str(tmp_path)}
    failed = JobStatus(
        name="train",
        phase=JobPhase.FAILED,
        why="ValueError: no (train.py:3)",
        elapsed_s=1.0,
        blame=Blame.USER,
        detail="Trace",
    )
    assert render.outcome_text(failed, files).splitlines()[0] == "ValueError: no (train.py:3)"
    assert "Trace" not in render.outcome_text(failed, files)
    assert "Trace" in render.outcome_text(failed, files, debug=True)
    assert render.exit_code(failed) == 1
    assert render.status_object(failed, files)["exit_code"] == 1 and render.status_object(failed, files)["logs"] == str(
        tmp_path
    )


def test_exit_codes_distinguish_user_and_infrastructure_errors():
    def code(phase, blame=Blame.NONE):
        return render.exit_code(JobStatus(name="train", phase=phase, why="", elapsed_s=1.0, blame=blame))

    assert code(JobPhase.FINISHED) == 0
    assert code(JobPhase.FAILED, Blame.USER) == 1
    assert code(JobPhase.FAILED, Blame.INFRASTRUCTURE) == 3
    assert code(JobPhase.STOPPED) == 130


def test_status_shows_data_workers_and_queue_fill():
    feed = FeedState(queued=3, room=8, waited_s=1.0, looped_s=10.0)
    fed = msgspec.structs.replace(
        STATUS,
        roles=RoleStatus(data_workers=RoleCount(alive=1, wanted=2), data_workers_why="asked"),
        data=msgspec.structs.replace(STATUS.data, feed=feed),
    )
    assert render.data_workers_text(fed) == "1/2 data workers, 3 of 8 batches ready, waited 10% of the time; asked"
    assert "3 of 8 batches ready" in panel_text(fed)
    none = msgspec.structs.replace(STATUS, roles=RoleStatus(data_workers_why="too little to pay for them"))
    assert (
        render.data_workers_text(none) == "none: too little to pay for them" and render.data_workers_text(STATUS) == ""
    )
    assert "too little to pay for them" in panel_text(none)


def panel_text(status):
    console = Console(file=io.StringIO(), width=80)
    console.print(job_drawings.Panel(status, SeenProgress()))
    return console.file.getvalue()


def test_job_with_failed_checkpoints_says_so_at_its_end():
    trouble = "checkpoint 1 was not completed: server-0.0: cannot write to /full: No space left on device"
    done = JobStatus(
        name="train", phase=JobPhase.FINISHED, why="", elapsed_s=1.0, checkpoints=CheckpointStatus(trouble=trouble)
    )
    told = " ".join(render.outcome_text(done, {}).split())
    assert told.endswith(f"saved no checkpoint; {trouble}")
    assert "saved" not in render.outcome_text(
        msgspec.structs.replace(done, checkpoints=CheckpointStatus(trouble="")), {}
    )
    stopped = msgspec.structs.replace(done, phase=JobPhase.STOPPED, checkpoints=CheckpointStatus(number=7, trouble=""))
    assert "saved   checkpoint 7, from which --resume continues" in render.outcome_text(stopped, {}).splitlines()
    failed = msgspec.structs.replace(stopped, phase=JobPhase.FAILED, why="no room left")
    assert "saved   checkpoint 7, from which --resume continues" in render.outcome_text(failed, {}).splitlines()


def test_resumed_job_without_remaining_samples_names_continue_from():
    done = JobStatus(name="train", phase=JobPhase.FINISHED, why="", elapsed_s=1.0, samples=200)
    assert "nothing was left" not in render.outcome_text(done, {})
    done = msgspec.structs.replace(done, training=TrainingStatus(samples_before=200))
    said = " ".join(render.outcome_text(done, {}).split())
    assert "nothing was left to train" in said and "use --continue-from instead of --resume" in said


def test_untrained_job_names_the_call_its_script_lacks():
    done = JobStatus(name="train", phase=JobPhase.FINISHED, why="", elapsed_s=1.0)
    assert "nothing was trained: the script never looped" in render.outcome_text(done, {})
    assert "nothing" not in render.outcome_text(
        msgspec.structs.replace(done, samples=10, data=DataStatus(shards_total=1)), {}
    )


def test_job_with_unreadable_samples_names_them_and_the_poison_option():
    failed = JobStatus(
        name="train", phase=JobPhase.FAILED, why="", elapsed_s=1.0, data=DataStatus(poisoned=("samples 0 to 64: no",))
    )
    told = render.outcome_text(failed, {}).splitlines()
    assert told[-2:] == [
        "given up: samples 0 to 64: no",
        "repair the data, or train without these samples: --poison skip",
    ]


def test_speed_of_a_resumed_run_excludes_earlier_samples():
    status = msgspec.structs.replace(
        STATUS,
        phase=JobPhase.FINISHED,
        samples=60_000,
        training=msgspec.structs.replace(STATUS.training, samples_before=48_000, trained_s=10.0),
    )
    assert render.numbers(status).endswith(" 1,200 samples/s")
