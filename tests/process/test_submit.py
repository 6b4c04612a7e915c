"""`springtide submit` on this machine: a job without a terminal, controlled by other commands."""

import contextlib
import json
import os
import signal

import pytest

from springtide.cli import app
from springtide.telemetry import logs
from tests import waiting
from tests.process import running

pytestmark = pytest.mark.process

FOREVER = running.endless_loop(
    "if not trained:\n    import os\n    print(os.environ['KEY'], os.environ['SPRINGTIDE_DATA'], flush=True)"
)
SPEC = """\
script: train.py
plan: false
dataWorkers: off
checkpoints: {everyS: 0}
environment: {KEY: of-the-spec}
data: {train: clicks}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a spec; remaining agents are killed with their roles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(running.ROOT))
    (tmp_path / "code").mkdir()
    running.script(tmp_path / "code", FOREVER)
    (tmp_path / "code" / "job.yaml").write_text(SPEC)
    yield tmp_path
    for run in logs.find_runs(tmp_path / ".springtide/runs"):
        if run.running:
            with contextlib.suppress(ProcessLookupError):  # it is through just now
                os.kill(run.card.agent_pid, signal.SIGKILL)


def submit_job(folder):
    """The name of a job that was just submitted."""
    with running.springtide("submit", "code/job.yaml", "--json", folder=folder) as command:
        code, out = command.finish()
    assert code == 0, command.said
    return json.loads(out[-1])["job"]


def command_output(capsys, *arguments, code=0):
    """Output of a command."""
    assert app.main([*arguments]) == code
    said = capsys.readouterr()
    return said.out.splitlines() if code == 0 else said.err.splitlines()


def test_submitted_job_is_followed_scaled_and_stopped_by_commands(folder, capsys):
    assert submit_job(folder) == "train"
    assert "runs already, as train" in command_output(capsys, "submit", "code/job.yaml", code=2)[0]
    with running.springtide("logs", "train", "-f", folder=folder) as logs:
        waiting.until(
            lambda: any("of-the-spec" in line for line in command_output(capsys, "logs", "train")), "it trains"
        )
        assert command_output(capsys, "scale", "train", "--workers", "2")[0].startswith(
            "job train: 2 workers requested"
        )
        wanted = lambda: json.loads(command_output(capsys, "status", "--json")[-1])  # noqa: E731
        waiting.until(lambda: wanted()["roles"]["workers"]["alive"] == 2, "the second one has joined")
        shown = wanted()
        assert (shown["job"], shown["platform"], shown["phase"]) == ("train", "local", "running")
        assert command_output(capsys, "stop", "--wait")[-1] == "job train: stopped"
        code, out = logs.finish()
    assert code == 0 and any(line.startswith("worker-1") for line in out)
    assert 'worker-0      | of-the-spec {"train": "clicks"}' in out
    assert any("asked by the user" in line for line in command_output(capsys, "explain"))


def test_submitted_job_ends_with_its_killed_agent_and_frees_its_name(folder, capsys):
    submit_job(folder)
    (run,) = logs.find_runs(folder / ".springtide/runs")
    os.kill(run.card.agent_pid, signal.SIGKILL)
    waiting.until(lambda: not run.running, "the agent is gone")
    assert command_output(capsys, "status")[0].startswith(
        "the command that ran the job was killed, which ended the job"
    )
    assert submit_job(folder) == "train-2"
