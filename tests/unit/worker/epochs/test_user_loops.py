"""Find the script's `for` loops over `batches` on the stack and continue after finished epochs."""

import importlib
import sys

import pytest

from springtide.worker.epochs import user_loops

OPEN = """
import sys
from springtide.worker.epochs import user_loops

found = []


class Batches:
    '''Asks, as a loop over it begins, which loop it is in.'''

    def __iter__(self):
        found.append(user_loops.enclosing(sys._getframe(1)))
        return iter([1, 2])


batches = Batches()
"""

LOOPS = {
    "in the same body": (
        "for epoch in range(2):\n    total = 0\n    for x in batches:\n        total += x\n",
        "<module> 0",
    ),
    "on one line": ("for epoch in range(2): total = sum(batches)\n", "<module> 0"),
    "by way of enumerate": (
        "for epoch in range(2):\n    for i, x in enumerate(batches):\n        pass\n",
        "<module> 0",
    ),
    "in a function that is called": (
        "def once():\n    for x in batches:\n        pass\n\n"
        "def main():\n    for other in range(3):\n        pass\n    for epoch in range(2):\n        once()\n\nmain()\n",
        "main 1",
    ),
    "in a method": (
        "class Trainer:\n    def fit(self):\n        for epoch in range(2):\n            for x in batches:\n"
        "                pass\n\nTrainer().fit()\n",
        "Trainer.fit 0",
    ),
    "in a closure": (
        "def main():\n    def fit():\n        for epoch in range(2):\n            [x for x in batches]\n    fit()\n"
        "\nmain()\n",
        "main.<locals>.fit 0",
    ),
    "inside another": (
        "for stage in range(1):\n    for epoch in range(2):\n        for x in batches:\n            pass\n",
        "<module> 1",
    ),
    "after a loop over batches on one line": ("for x in batches: pass\n", None),
    "a while loop": ("epoch = 0\nwhile epoch < 2:\n    list(batches)\n    epoch += 1\n", None),
    "a function that only stands in a loop": (
        "for _ in range(1):\n    def once():\n        list(batches)\nonce()\n",
        None,
    ),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_innermost_enclosing_loop_is_found(kind, tmp_path):
    text, name = LOOPS[kind]
    script = tmp_path / "train.py"
    script.write_text(OPEN + text)
    namespace = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), namespace)
    names = {None if loop is None else loop.named(str(tmp_path)) for loop in namespace["found"]}
    assert names == {None if name is None else f"train.py {name}"}


FINISHED = """
import builtins
import sys
from springtide.worker.epochs import user_loops

told = []
_left = iter([0, 1])


class Batches:
    def __iter__(self):
        if next(_left, None) is not None:
            assert user_loops.continues(user_loops.enclosing(sys._getframe(1)))
            raise user_loops.EpochFinished
        return iter([1, 2])
"""

TRAINING = """

def fit(batches):
    for epoch in range(4):
        total = n = 0
        for x in batches:
            total, n = total + x, n + 1
        if epoch == 3:
            break
        told.append((epoch, total / n))
    else:
        told.append("never")
    return told
"""


def test_finished_epoch_is_continued_in_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FINISHED + TRAINING + "\nfit(Batches())\n")
    code = user_loops.install(str(script), "train.py fit 0")
    namespace = {}
    exec(code, namespace)
    assert namespace["told"] == [(2, 1.5)], "neither an empty epoch nor one that was finished"


def test_loop_in_an_imported_module_is_found_despite_the_bytecode_cache(tmp_path, monkeypatch):
    (tmp_path / "fitting.py").write_text("from opened import Batches, told\n" + TRAINING)
    (tmp_path / "opened.py").write_text(FINISHED)
    script = tmp_path / "train.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    importlib.import_module("fitting")  # compiled and cached as the file says
    for name in ("fitting", "opened"):
        monkeypatch.delitem(sys.modules, name)
    assert user_loops.install(str(script), "fitting.py fit 0") is None
    fitting = importlib.import_module("fitting")
    assert fitting.fit(fitting.Batches()) == [(2, 1.5)]
    for name in ("fitting", "opened"):
        monkeypatch.delitem(sys.modules, name)


def test_loop_missing_from_the_changed_script_is_ignored(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(OPEN + "list(batches)\n")
    assert user_loops.install(str(script), "train.py fit 0") is None
    script.write_text("for epoch in\n")
    assert user_loops.install(str(script), "train.py <module> 0") is None


def test_loop_rewrite_keeps_line_numbers(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for epoch in range(2):\n    one = 1\n    raise ValueError(epoch)\n")
    code = user_loops.install(str(script), "train.py <module> 0")
    with pytest.raises(ValueError) as raised:
        exec(code, {})
    assert raised.traceback[-1].lineno + 1 == 3
