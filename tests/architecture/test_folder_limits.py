"""Limits on folders, files and functions: size, meaningful names, docstrings."""

import ast
import collections

from tests.architecture import sources

FILE_LINES = 600
FUNCTION_LINES = 60
MODULES = 12
FOLDERS = 8
TEST_NAME = 95
RIDDLES = {"anew", "everybody", "naught", "nobody", "somebody", "whatever", "whoever", "whom"}
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "tools", "lib"}


def test_files_have_at_most_600_lines():
    long = {
        sources.short(path): lines
        for path in [*sources.python("springtide", "lab", "tests", "tools", "examples"), *sources.native()]
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert not long, f"over {FILE_LINES} lines: {long}"


def test_python_functions_have_at_most_60_lines():
    long = []
    for path in sources.python("springtide", "lab", "tests", "tools", "examples"):
        for node in sources.nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{sources.short(path)}:{node.lineno} {node.name} has {lines}")
    assert not long, f"functions over {FUNCTION_LINES} lines: {long}"


def test_folder_has_few_modules_and_subfolders():
    modules, folders = collections.Counter(), collections.defaultdict(set)
    for path in sources.python("springtide", "lab"):
        if path.stem != "__init__":
            modules[sources.short(path.parent)] += 1
        for folder in path.relative_to(sources.ROOT).parents:
            folders[str(folder.parent)].add(folder.name)
    crowded = {folder: count for folder, count in modules.items() if count > MODULES}
    assert not crowded, f"over {MODULES} modules in a folder: {crowded}"
    wide = {folder: len(inner) for folder, inner in folders.items() if len(inner) > FOLDERS}
    assert set(wide) <= {"springtide"}, f"over {FOLDERS} sub-folders: {wide}"


def test_no_folder_or_module_has_a_meaningless_name():
    files = [*sources.python("springtide", "lab", "tests"), *sources.native()]
    empty = {
        sources.short(path) for path in files if SAYS_NOTHING & {path.stem, *path.relative_to(sources.ROOT).parts[:-1]}
    }
    assert not empty, f"name these for what they do: {sorted(empty)}"


def test_test_names_are_short_and_say_their_subject():
    names = {
        f"{sources.short(path)}: {node.name}": node.name
        for path in sources.python("tests")
        for node in sources.nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    riddles = [place for place, name in names.items() if len(name) > TEST_NAME or RIDDLES & set(name.split("_"))]
    assert not riddles, f"say subject, verb and outcome, such as test_revoked_lease_is_not_trained: {riddles}"


def test_every_module_has_a_docstring():
    silent = [sources.short(path) for path in sources.python("springtide", "lab") if not sources.docstring(path)]
    assert not silent, f"no module docstring: {silent}"


def test_every_native_file_begins_with_a_comment():
    doors = [path for path in sources.native() if path.suffix == ".h" or not path.with_suffix(".h").exists()]
    silent = [sources.short(path) for path in doors if not path.read_text().startswith(("//", "/*"))]
    assert not silent, f"no opening comment: {silent}"


def test_no_todo_mark_is_left():
    marks = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error", "not implemented" + " yet")
    files = [*sources.python("springtide", "lab", "tests", "tools", "examples"), *sources.native()]
    found = [f"{sources.short(path)}: {mark}" for path in files for mark in marks if mark in path.read_text()]
    assert not found, found


def test_no_exception_is_silently_swallowed():
    swallowed = []
    for path in sources.python("springtide", "lab", "tests", "tools", "examples"):
        for node in sources.nodes(path):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            if broad and all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body):
                swallowed.append(f"{sources.short(path)}:{node.lineno}")
    assert not swallowed, f"catch less, or do something about it: {swallowed}"


def test_no_file_names_a_developers_folder():
    places = ("/wo" + "rk/", "/tmp/" + "wt")
    text = [p for p in sources.tracked() if p.suffix not in {".png", ".jpg", ".gif", ".parquet", ".so"}]
    found = [
        f"{sources.short(path)}: {place}"
        for path in text
        for place in places
        if place in path.read_text(errors="replace")
    ]
    assert not found, found
