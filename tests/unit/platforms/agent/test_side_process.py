"""A process beside a job is kept running until the job ends."""

import asyncio
import sys

from springtide.platforms.agent import side_process
from springtide.platforms.agent.side_process import SideProcess
from springtide.telemetry import logs
from tests import waiting


def test_dead_process_is_restarted_and_ends_with_the_job(tmp_path, monkeypatch):
    """The process is a stand-in that notes its starts, dies the first time, and then waits for its input to end."""
    note, said = tmp_path / "starts", []
    script = (
        "import pathlib, sys\n"
        f"note = pathlib.Path({str(note)!r})\n"
        "note.write_text((note.read_text() if note.exists() else '') + 'x')\n"
        "if note.read_text() == 'x': sys.exit(3)\n"
        "print('waits', flush=True)\n"
        "sys.stdin.read()\n"
        "print('the last work')\n"
    )
    monkeypatch.setattr(side_process, "AGAIN_S", 0.01)
    run = logs.make_run(tmp_path, "demo")
    process = SideProcess("none", [], run.logs / "exports.log", say=said.append)
    process.command = [sys.executable, "-S", "-c", script]

    async def job():
        process.begin()
        await waiting.soon(lambda: "waits" in said, "a process that waits")
        await process.end()

    asyncio.run(job())
    assert note.read_text() == "xx" and said[-1] == "the last work"
