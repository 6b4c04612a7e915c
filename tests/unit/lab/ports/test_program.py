"""A port names its changed lines, and refuses another version of the package."""

import dataclasses
import hashlib

import pytest

from springtide import errors
from springtide_lab import __main__ as command
from springtide_lab.ports import deepctr_torch, torchrec
from springtide_lab.ports.program import Change, Program
from springtide_lab.ports.report import markdown
from springtide_lab.ports.runner import PortResult, Runs

SOURCE = "def fit(): ...\n"
PORT = Program(
    name="Some",
    package="some==1.0",
    needs=("other",),
    source="some/loop.py",
    sha256=hashlib.sha256(SOURCE.encode()).hexdigest(),
    text="import some\nif True:\n    fit(1)\n    print(2)\n",
    changes=(Change("fit(", ("prepare()", "fit(1)")), Change("print(", ("print(3)",))),
    epochs=1,
)


def test_changes_are_inserted_with_the_indent_of_their_line_and_counted():
    assert PORT.ported == "import some\nif True:\n    prepare()\n    fit(1)\n    print(3)\n"
    assert PORT.changed_lines == 2


@pytest.mark.parametrize("line", ["none", "import"])
def test_change_must_match_exactly_one_line(line):
    port = dataclasses.replace(PORT, text="import a\nimport b\n", changes=(Change(line, ("x",)),))
    with pytest.raises(errors.BadInput, match=rf"port of Some: \d lines start with '{line}'; expected one"):
        _ = port.ported


def test_package_of_another_version_is_refused(tmp_path):
    with pytest.raises(errors.MissingFile, match=r"pip install --no-deps --target .* some==1.0 other"):
        PORT.check(tmp_path)
    (tmp_path / "some").mkdir()
    (tmp_path / "some/loop.py").write_text(SOURCE)
    PORT.check(tmp_path)
    (tmp_path / "some/loop.py").write_text(SOURCE + "\n")
    with pytest.raises(errors.BadInput, match="is of another version of Some: its SHA-256 begins with"):
        PORT.check(tmp_path)


@pytest.mark.parametrize("port", [deepctr_torch.PROGRAM, torchrec.PROGRAM], ids=lambda port: port.name)
def test_each_port_is_a_program_whose_changes_fit(port):
    for text in (port.text, port.ported):
        compile(text, port.name, "exec")
    assert 0 < port.changed_lines < 15
    assert "springtide" in port.ported and "springtide" not in port.text


def test_table_has_a_row_for_each_program():
    ways = ("original", "alone", "2 x 2", "killed", "resumed")
    runs = {way: Runs((0.7, 0.8), once=way != "killed") for way in ways}
    result = PortResult("Some", "some==1.0", 3, 900, 0.85, runs)

    assert markdown([result])[2:] == [f"| Some (`some==1.0`) | 3 |{' 0.7500 ± 0.0707 |' * 5} no |"]


def test_errors_of_the_command_are_one_line(tmp_path, capsys):
    assert command.main(["ports", str(tmp_path), "--program", "deepctr"]) == 2
    assert "Did you mean 'deepctr-torch'?" in capsys.readouterr().err
    assert command.main(["ports", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "basemodel.py does not exist; install DeepCTR-Torch there: pip install" in error and error.count("\n") == 1
