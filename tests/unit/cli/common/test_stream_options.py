"""Stream options of `springtide run`."""

from springtide.cli import app


def test_stream_options_are_those_of_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert app.main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--online", "--min-workers", "--max-workers", "--slo-lag"))
    (tmp_path / "train.py").write_text("")
    assert app.main(["run", "train.py", "--min-workers", "3", "--max-workers", "2"]) == 2
    assert "min 3: must not be above max, 2" in capsys.readouterr().err
    assert app.main(["run", "train.py", "--slo-lag", "soon"]) == 2
    assert app.main(["run", "train.py", "--online", "atuo"]) == 2
    assert "Did you mean 'auto'?" in capsys.readouterr().err
