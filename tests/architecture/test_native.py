"""The C++ core: small folders whose includes form no cycles."""

import collections
import graphlib
import re

from tests.architecture import sources
from tests.architecture.test_folder_limits import FOLDERS, MODULES

CPP = sources.ROOT / "cpp"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def test_native_folder_has_few_units():
    units, folders = collections.defaultdict(set), collections.defaultdict(set)
    for path in sources.native():
        folder = path.parent.relative_to(CPP)
        units[str(folder)].add(path.stem.removesuffix("_test").removesuffix("_fuzz"))
        for inner in (folder, *folder.parents):
            folders[str(inner.parent)].add(inner.name)
    crowded = {folder: len(names) for folder, names in units.items() if len(names) > MODULES}
    assert not crowded, f"over {MODULES} units (x.h, x.cpp, x_test.cpp) in a folder of cpp/: {crowded}"
    wide = {folder: len(names) for folder, names in folders.items() if folder != "." and len(names) > FOLDERS}
    assert not wide, f"over {FOLDERS} sub-folders in a folder of cpp/: {wide}"


def test_native_folders_include_each_other_in_one_direction():
    needs = collections.defaultdict(set)
    for path in sources.native():
        if path.stem.endswith(("_test", "_fuzz")):
            continue
        folder = str(path.parent.relative_to(CPP))
        for included in INCLUDE.findall(path.read_text()):
            assert (CPP / included).is_file(), f"{sources.short(path)} includes {included}: name it from cpp/ on"
            if folder_of(included) != folder:
                needs[folder].add(folder_of(included))
    try:
        tuple(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as cycle:
        raise AssertionError(f"folders of cpp/ include each other in a circle: {' -> '.join(cycle.args[1])}") from cycle


def test_product_code_includes_no_testing_code():
    wrong = [
        sources.short(path)
        for path in sources.native()
        if not path.stem.endswith(("_test", "_fuzz")) and path.parent != CPP / "testing"
        if any(folder_of(included) == "testing" for included in INCLUDE.findall(path.read_text()))
    ]
    assert not wrong, f"helpers of tests (cpp/testing) in product code: {wrong}"
