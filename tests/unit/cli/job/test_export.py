"""`springtide export` when the newest checkpoint is damaged."""

import json

import pytest

from springtide.cli import app
from tests.unit.checkpoint import stores
from tests.unit.export import exports


def two_checkpoints(folder):
    """Of a store that was trained in between; the second is 64 images in a file of its own."""
    store = stores.store()
    for number in (1, 2):
        stores.train(store, range(100))
        exports.outlined(folder, store, exports.Outline(tables=exports.PLAIN.tables), number)


def flip(path, at=-9):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, -9])
def test_damaged_checkpoint_is_reported_and_the_previous_exported(tmp_path, capsys, at):
    two_checkpoints(tmp_path / "saved")
    flip(tmp_path / "saved/server-0.0-000002.run1.seg", at)
    asked = ["export", str(tmp_path / "saved"), str(tmp_path / "out"), "--json"]
    assert app.main(asked) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["number"] == 1
    words = " ".join(said.err.split())
    assert "warning: checkpoint 2 in " in words and "the image of slot " in words
    assert app.main([*asked, "--checkpoint", "2"]) == 2  # who names one wants that one
    assert "error: the image of slot " in capsys.readouterr().err


def test_error_says_that_no_checkpoint_is_intact(tmp_path, capsys):
    two_checkpoints(tmp_path / "saved")
    for number in (1, 2):
        flip(tmp_path / f"saved/server-0.0-00000{number}.run1.seg")
    assert app.main(["export", str(tmp_path / "saved"), str(tmp_path / "out")]) == 2
    assert "none of the checkpoints in " in capsys.readouterr().err
