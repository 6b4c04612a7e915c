"""`springtide init`: what it writes, and that it replaces nothing. The project itself runs in the process tests."""

from springtide.cli import app

FILES = ["clicks.csv", "clicks.py", "job.yaml", "test_train.py", "train.py"]


def test_init_writes_a_project_and_says_how_to_run_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["init", "new"]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == FILES
    assert "cd new && springtide run train.py" in capsys.readouterr().out
    assert app.main(["submit", "new/job.yaml", "--dry-run"]) == 0


def test_init_replaces_no_file(tmp_path, capsys):
    (tmp_path / "train.py").write_text("mine")
    assert app.main(["init", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path / 'train.py'} exists" in err and "springtide init NAME" in err and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_init_names_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert app.main(["init", str(tmp_path / "file" / "new")]) == 2
    assert "cannot write" in capsys.readouterr().err
