import threading

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.export import export_folder
from springtide.launch import export_process
from springtide.telemetry import logs
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


def test_exporter_reads_the_run_folder_and_hides_its_urls(tmp_path):
    run = logs.make_run(tmp_path, "demo")
    exporter = export_process.exporter(run, CheckpointRules(every_s=30), "exports", every_s=300)
    assert exporter.command[-1] == "springtide.launch.export_process", "a URL may have a password"
    assert exporter.arguments == [str(run.checkpoints), "exports", "300", ""]
