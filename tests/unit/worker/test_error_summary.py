"""First line of a failed script: its own error and source line."""

import pathlib
import sys
from types import SimpleNamespace

import pytest

from springtide import config, errors
from springtide.domain.spec.job_spec import Blame
from springtide.worker import error_summary, job, runner


def caught(folder, text, modules=()):
    """The exception that a script raises, and the script."""
    script = folder / "train.py"
    script.write_text(text)
    for name, body in modules:
        (folder / name).write_text(body)
    try:
        exec(compile(text, str(script), "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return error, str(script)
    raise AssertionError("the script did not raise")


def test_error_line_is_the_users_innermost_frame(tmp_path):
    error, script = caught(tmp_path, "import json\ndef load():\n    return json.loads('{')\nload()\n")
    assert error_summary.first_line(error, script).endswith("(train.py:3)")
    assert error_summary.first_line(error, script).startswith("JSONDecodeError: Expecting property name")


def test_error_line_of_a_cython_frame_is_skipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "exec(compile('raise OSError(1)', 'pyarrow/error.pxi', 'exec'))\n"
    error, script = caught(tmp_path, text)
    assert error_summary.first_line(error, script) == "OSError: 1 (train.py:1)"


def test_multi_line_or_empty_error_becomes_one_line(tmp_path):
    error, script = caught(tmp_path, "raise RuntimeError('first\\nsecond')\n")
    assert error_summary.first_line(error, script) == "RuntimeError: first (train.py:1)"
    error, script = caught(tmp_path, "x = 1\nassert x == 2\n")
    assert error_summary.first_line(error, script) == "AssertionError (train.py:2)"


def test_undefined_name_after_an_empty_loop_is_explained(tmp_path):
    error, script = caught(tmp_path, "for loss in ():\n    pass\nprint(loss)\n")
    assert error_summary.first_line(error, script) == "NameError: name 'loss' is not defined (train.py:3)"
    said = error_summary.first_line(error, script, unneeded=True)
    assert "(train.py:3): this worker's loop never ran" in said and "Define variables" in said
    error, script = caught(tmp_path, "raise ValueError('mine')\n")
    assert error_summary.first_line(error, script, unneeded=True) == "ValueError: mine (train.py:1)"


def test_syntax_error_names_its_own_line(tmp_path):
    error, script = caught(tmp_path, "import ast\nast.parse('x = (', filename='other.py')\n")
    assert error_summary.first_line(error, script) == "SyntaxError: '(' was never closed (other.py:1)"
    error, script = caught(tmp_path, "raise SyntaxError('no line of it')\n")
    assert error_summary.first_line(error, script) == "SyntaxError: no line of it (train.py)"


def test_springtide_frames_are_not_user_lines():
    assert error_summary.is_ours(error_summary.__file__)
    assert not error_summary.is_ours(str(pathlib.Path("/home/user/train.py")))


SCRIPT = pathlib.Path("/home/someone/train.py")


@pytest.fixture(autouse=True)
def as_python_is(monkeypatch):
    """Restore Python's own excepthook, and make `__main__` a started script."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(SCRIPT)))


def raise_in_script(text):
    """The error that a script of this text raises."""
    try:
        exec(compile(text, str(SCRIPT), "exec"), {"errors": errors, "config": config})
    except Exception as error:
        return type(error), error, error.__traceback__
    raise AssertionError("nothing was raised")


def test_user_mistake_prints_one_message_with_the_users_line(capsys):
    error_summary.show_briefly()
    sys.excepthook(*raise_in_script("\n\nraise errors.BadInput('batch_size=0: wanted 1 or more')"))
    said = "error: batch_size=0: wanted 1 or more (train.py:3)\nSPRINGTIDE_DEBUG=1 shows the traceback\n"
    assert capsys.readouterr().err == said


def test_springtide_error_caused_by_another_prints_one_message(capsys):
    error_summary.show_briefly()
    sys.excepthook(*raise_in_script("config.job_secret(config.Settings(secret_file='/nowhere'))"))
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
def test_other_errors_print_a_traceback(capsys, text):
    error_summary.show_briefly()
    sys.excepthook(*raise_in_script(text))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_foreign_excepthook_is_kept(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", print)
    error_summary.show_briefly()
    error_summary.show_all()
    assert sys.excepthook is print


def test_excepthook_stays_in_interactive_sessions(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    error_summary.show_briefly()
    assert sys.excepthook is sys.__excepthook__


def test_join_installs_the_short_excepthook_unless_tracebacks_are_set(monkeypatch):
    monkeypatch.setattr(config.os, "environ", {})
    job.join()
    assert sys.excepthook is not sys.__excepthook__
    job.join(debug=True)
    assert sys.excepthook is sys.__excepthook__


@pytest.mark.parametrize(
    ("first", "blame"),
    [
        (errors.ServerUnreachable("server-0 is gone"), Blame.INFRASTRUCTURE),
        (errors.GroupChanged("a member of the group is lost"), Blame.INFRASTRUCTURE),
        (errors.BadInput("ids must be >= 0"), Blame.USER),
        (KeyError("age"), Blame.USER),
    ],
)
@pytest.mark.parametrize("explicit", [True, False])
def test_error_that_a_script_raises_because_of_another_has_the_blame_of_that_error(first, blame, explicit):
    with pytest.raises(RuntimeError) as raised:
        try:
            raise first
        except Exception as error:
            if explicit:
                raise RuntimeError("training failed") from error
            raise RuntimeError("cleaning up failed")  # noqa: B904 - a script may forget `from`
    assert runner.blame_of(raised.value) is blame
    assert runner.blame_of(first) is blame


def test_error_raised_from_none_has_its_own_blame():
    with pytest.raises(RuntimeError) as raised:
        try:
            raise errors.MasterUnreachable("no answer")
        except errors.MasterUnreachable:
            raise RuntimeError("a bug of the script") from None
    assert runner.blame_of(raised.value) is Blame.USER
