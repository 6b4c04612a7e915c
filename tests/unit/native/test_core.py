"""Run the native unit tests built by `make native-tests`."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TESTS = sorted(path.stem for path in (ROOT / "cpp").rglob("*_test.cpp"))


@pytest.mark.process
@pytest.mark.parametrize("name", TESTS)
def test_native_unit_test_passes(name):
    program = ROOT / "build" / "native" / name
    assert program.exists(), f"{program.name} is not built: run `make native-tests`, or `make test` which does"
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
