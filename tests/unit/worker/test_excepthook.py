"""A script that trains alone ends by its user's mistake with one message; whatever else is raised looks as ever."""

import pathlib
import sys
from types import SimpleNamespace

import pytest

from springtide import config, errors
from springtide.worker import excepthook, job

SCRIPT = pathlib.Path("/home/someone/train.py")


@pytest.fixture(autouse=True)
def as_python_is(monkeypatch):
    """Python's own hook, whatever pytest has set, and a script that was started as such."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(SCRIPT)))


def raised(text):
    """What a script of this text raises."""
    try:
        exec(compile(text, str(SCRIPT), "exec"), {"errors": errors, "config": config})
    except Exception as error:
        return type(error), error, error.__traceback__
    raise AssertionError("nothing was raised")


def test_a_mistake_is_one_message_with_the_users_line(capsys):
    excepthook.show_briefly()
    sys.excepthook(*raised("\n\nraise errors.BadInput('batch_size=0: wanted 1 or more')"))
    said = "error: batch_size=0: wanted 1 or more (train.py:3)\nSPRINGTIDE_DEBUG=1 shows the traceback\n"
    assert capsys.readouterr().err == said


def test_so_is_one_that_we_found_by_an_error_of_others(capsys):
    excepthook.show_briefly()
    sys.excepthook(*raised("config.job_secret(config.Settings(secret_file='/nowhere'))"))
    said = capsys.readouterr().err
    assert said.startswith("error: cannot read the job's secret from /nowhere") and "Traceback" not in said


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('mine')",
        "raise errors.JobFailed('the job cannot go on')",
        "raise errors.UnreadableSample('sample 3 cannot be made')",
        "raise errors.BadInput('no such column') from KeyError('age')",
        "class Mine:\n    def __fspath__(self):\n        raise OSError('my own')\n"
        "config.job_secret(config.Settings(secret_file=Mine()))",
        "try:\n    {}['age']\nexcept KeyError:\n    raise errors.BadInput('while something else was wrong')",
    ],
)
def test_everything_else_has_its_traceback(capsys, text):
    excepthook.show_briefly()
    sys.excepthook(*raised(text))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_hook_of_someone_else_stays(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", print)
    excepthook.show_briefly()
    excepthook.show_all()
    assert sys.excepthook is print


def test_nor_is_it_for_who_types_or_debugs(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    excepthook.show_briefly()
    assert sys.excepthook is sys.__excepthook__


def test_to_join_is_enough_unless_the_settings_ask_for_tracebacks(monkeypatch):
    monkeypatch.setattr(config.os, "environ", {})
    job.join()
    assert sys.excepthook is not sys.__excepthook__
    job.join(debug=True)
    assert sys.excepthook is sys.__excepthook__
