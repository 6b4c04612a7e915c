import threading

from springtide.cli import exporting
from springtide.export import files
from tests.unit.checkpoint import stores
from tests.unit.export.test_collect import outlined
from tests.unit.export.test_following import OUTLINE


def test_what_is_newest_is_exported_until_told_to_end_and_then_once_more(tmp_path, monkeypatch, capsys):
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
    assert exporting.follow(str(tmp_path / "checkpoints"), url, every_s=60, ended=ended) == 0
    assert files.numbers(url) == [4, 3, 1]
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["export 1 (whole)", "export 3 (since 1)", "export 4 (since 3)"]
