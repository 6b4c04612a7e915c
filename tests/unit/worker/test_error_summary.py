"""The first line of a failed script: its own error, and where in its own code."""

import pathlib

from springtide.worker import error_summary


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


def test_the_line_is_the_innermost_one_of_the_users_own(tmp_path):
    error, script = caught(tmp_path, "import json\ndef load():\n    return json.loads('{')\nload()\n")
    assert error_summary.first_line(error, script).endswith("(train.py:3)")
    assert error_summary.first_line(error, script).startswith("JSONDecodeError: Expecting property name")


def test_a_line_of_what_cython_compiled_is_nobodys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "exec(compile('raise OSError(1)', 'pyarrow/error.pxi', 'exec'))\n"
    error, script = caught(tmp_path, text)
    assert error_summary.first_line(error, script) == "OSError: 1 (train.py:1)"


def test_an_error_of_many_lines_or_none_is_one_line(tmp_path):
    error, script = caught(tmp_path, "raise RuntimeError('first\\nsecond')\n")
    assert error_summary.first_line(error, script) == "RuntimeError: first (train.py:1)"
    error, script = caught(tmp_path, "x = 1\nassert x == 2\n")
    assert error_summary.first_line(error, script) == "AssertionError (train.py:2)"


def test_a_name_that_a_loop_without_a_batch_did_not_define_is_explained(tmp_path):
    error, script = caught(tmp_path, "for loss in ():\n    pass\nprint(loss)\n")
    assert error_summary.first_line(error, script) == "NameError: name 'loss' is not defined (train.py:3)"
    said = error_summary.first_line(error, script, unneeded=True)
    assert "(train.py:3): no batch was left for this worker" in said and "Define before the loop" in said
    error, script = caught(tmp_path, "raise ValueError('mine')\n")
    assert error_summary.first_line(error, script, unneeded=True) == "ValueError: mine (train.py:1)"


def test_a_syntax_error_names_its_own_line(tmp_path):
    error, script = caught(tmp_path, "import ast\nast.parse('x = (', filename='other.py')\n")
    assert error_summary.first_line(error, script) == "SyntaxError: '(' was never closed (other.py:1)"
    error, script = caught(tmp_path, "raise SyntaxError('no line of it')\n")
    assert error_summary.first_line(error, script) == "SyntaxError: no line of it (train.py)"


def test_our_own_files_are_not_the_users():
    assert error_summary.is_ours(error_summary.__file__)
    assert not error_summary.is_ours(str(pathlib.Path("/home/user/train.py")))
