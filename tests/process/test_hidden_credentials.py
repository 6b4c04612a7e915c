"""Credentials of a spec are readable only by its user and never printed."""

import os
import pathlib
import secrets
import stat
import subprocess
import sys

import pytest

from springtide.telemetry import events
from tests import waiting
from tests.process import running

pytestmark = pytest.mark.process

MARK = f"marked-{secrets.token_hex(12)}"
SPEC = f"""
script: train.py
arguments: ["--db-password", "{MARK}", "--store=s3://me:{MARK}@bucket/x"]
environment: {{STORE_API_KEY: "{MARK}"}}
data: {{train: "kafka://me:{MARK}@broker:9092/clicks"}}
workers: {{count: 1}}
servers: {{count: 1}}
checkpoints: {{everyS: 0.5, url: "memory://me:{MARK}@bucket/train?token={MARK}", uploadEveryS: 0.5}}
following: {{exportTo: "memory://me:{MARK}@bucket/exports", exportEvery: 1s}}
patience: {{heartbeatS: 0.1}}
"""
BODY = """
import os, pathlib
if not pathlib.Path("go").exists():
    import time
    time.sleep(0.02)
    continue
assert sys.argv[1:3] == ["--db-password", os.environ["STORE_API_KEY"]], "the script has what it was given"
assert os.environ["STORE_API_KEY"] in os.environ["SPRINGTIDE_DATA"]
raise RuntimeError(f"cannot reach {sys.argv[3]}: {os.environ['STORE_API_KEY']} was refused, password={sys.argv[2]}")
"""


EACH = "import sys; from springtide.cli import app; [print(app.main(line.split())) for line in sys.argv[1:]]"
"""Several commands in one process: their imports take longer than they do."""


def python(folder, *arguments):
    """All that a program prints. Roles are not forked, so that each has a command line of its own."""
    environment = {**os.environ, "PYTHONPATH": str(running.ROOT), "SPRINGTIDE_WARM_STARTS": "0"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def command(folder, *arguments):
    """All that a command prints."""
    return python(folder, "-m", "springtide.cli.app", *arguments)


def command_lines():
    """Command line and working folder of every process on this machine, as any user sees them."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield line, (process / "cwd").readlink()
        except OSError:
            continue


def test_spec_credentials_are_neither_readable_by_others_nor_printed(tmp_path):
    running.script(tmp_path, running.loop(body=BODY, samples=10**12))
    (tmp_path / "job.yaml").write_text(SPEC)
    printed = [command(tmp_path, "submit", "job.yaml", "--dry-run", "--json"), command(tmp_path, "submit", "job.yaml")]
    run = tmp_path / ".springtide/runs/train"
    wanted, seen = {"master.main", "worker.runner", "server.__main__", "export_process", "transfer.upload"}, set()

    def all_seen():
        for line, folder in command_lines():
            assert MARK not in line, line
            if folder == tmp_path:
                seen.update(each for each in wanted if each in line)
        return seen == wanted

    try:
        waiting.until(all_seen, f"processes of all kinds run: {wanted}", every_s=0.1)
        printed.append(command(tmp_path, "status", "--json"))
        check_files(run)
        (tmp_path / "go").touch()
        waiting.until(
            lambda: [e for e in events.read(run / "events.jsonl") if e["event"] == "ended"], "the job is over"
        )
    finally:
        command(tmp_path, "stop", "--wait")
    shown = ("status --json", "explain --json", "events --json", "checkpoints --json", "logs --lines 1000", "metrics")
    printed.append(python(tmp_path, "-c", EACH, *shown))
    assert "cannot reach --store=s3://me:hidden@bucket/x: hidden was refused" in printed[-1], "the error is told"
    assert all(MARK not in each for each in printed)
    check_files(run)
    assert not (run / "spec.json").exists()


def check_files(run):
    """Check that only its user can read the run folder, and that the mark is only in allowed files."""
    assert run.stat().st_mode & 0o777 == 0o700
    files = [path for path in run.rglob("*") if path.is_file()]
    shared = [path for path in files if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    assert {path.relative_to(run).parts[0] for path in shared} <= {"checkpoints"}, "models have no credentials"
    assert not [path for path in shared if MARK.encode() in path.read_bytes()]
    assert {path.name for path in files} >= {"journal.db", "events.jsonl", "job.json", "worker-0.log"}
    holders = {path.name for path in files if MARK.encode() in path.read_bytes()}
    assert holders <= {"spec.json", "journal.db", "journal.db-wal", "uploads.json"}, holders
