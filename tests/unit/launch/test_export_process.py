import asyncio
import sys
import threading

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.export import export_folder
from springtide.launch import export_process
from springtide.telemetry import logs
from tests import waiting
from tests.unit.checkpoint import stores
from tests.unit.export.exports import outlined
from tests.unit.export.test_exporter import OUTLINE


def test_newest_checkpoint_is_exported_repeatedly_and_once_at_the_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    store, url, ended = stores.store(), str(tmp_path / "exports"), threading.Event()
    turns = iter(range(1, 5))

    def wait(_):
        number = next(turns)
        if number == 2:
            (tmp_path / "checkpoints" / "manifest-000002.ckpt").write_bytes(b"torn")  # the one before is there still
        else:
            stores.train(store, range(number))
            outlined(tmp_path / "checkpoints", store, OUTLINE, number)
        return number == 4

    monkeypatch.setattr(ended, "wait", wait)
    assert export_process.follow(str(tmp_path / "checkpoints"), url, every_s=60, ended=ended) == 0
    assert export_folder.numbers(url) == [4, 3, 1]
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["export 1 (whole)", "export 3 (since 1)", "export 4 (since 3)"]


def test_dead_exporter_is_restarted_and_ends_with_the_job(tmp_path, monkeypatch):
    """The process is a stand-in that notes its starts, dies the first time, and then waits for its input to end."""
    note = tmp_path / "starts"
    script = (
        "import pathlib, sys\n"
        f"note = pathlib.Path({str(note)!r})\n"
        "note.write_text((note.read_text() if note.exists() else '') + 'x')\n"
        "if note.read_text() == 'x': sys.exit(3)\n"
        "print('waits', flush=True)\n"
        "sys.stdin.read()\n"
        "print('the last export')\n"
    )
    run = files_of_run(tmp_path)
    monkeypatch.setattr(export_process, "AGAIN_S", 0.01)
    exporter = export_process.Exporter(run, CheckpointRules(every_s=30), "exports", every_s=300)
    assert exporter._command[-1] == "springtide.launch.export_process", "a URL may have a password"
    assert exporter._arguments == [str(run.checkpoints), "exports", "300", ""]
    exporter._command = [sys.executable, "-S", "-c", script]

    async def job():
        exporter.begin()
        await waiting.soon(lambda: "waits" in (run.logs / "exports.log").read_text(), "an exporter that waits")
        await exporter.end()

    (run.logs / "exports.log").touch()
    asyncio.run(job())
    assert note.read_text() == "xx" and (run.logs / "exports.log").read_text().splitlines()[-1] == "the last export"


def files_of_run(folder):
    return logs.make_run(folder, "demo")
