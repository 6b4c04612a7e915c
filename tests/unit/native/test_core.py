"""Run the native unit tests built by `make native-tests`, and replay the inputs of the fuzz targets."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TESTS = sorted(path.stem for path in (ROOT / "cpp").rglob("*_test.cpp"))
ALONE = {"store_reserve_test"}
"""Tests with an executable of their own."""
TARGETS = sorted(path.stem for path in (ROOT / "cpp").rglob("*_fuzz.cpp"))


@pytest.mark.process
@pytest.mark.parametrize("name", TESTS)
def test_native_unit_test_passes(name):
    run(name)


@pytest.mark.process
@pytest.mark.parametrize("name", TARGETS)
def test_known_inputs_of_a_fuzz_target_break_nothing(name):
    run(name, ROOT / "tests" / "fuzz" / "corpus" / name)


def run(name, *arguments):
    program = ROOT / "build" / "native" / (name if name in ALONE else "native_tests")
    assert program.exists(), f"{program.name} is not built: run `make native-tests`, or `make test` which does"
    done = subprocess.run([program, name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
