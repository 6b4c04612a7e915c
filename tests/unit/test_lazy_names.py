import sys

import pytest

import springtide
from springtide import errors


def test_import_of_a_missing_native_core_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delattr(springtide, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "springtide._native", None)
    with pytest.raises(errors.MissingNativeCore, match="`make env`"):  # the tests run in a clone
        from springtide import _native
    monkeypatch.setattr(springtide, "__path__", [str(tmp_path / "springtide")])
    with pytest.raises(ImportError, match="reinstall a wheel"):
        from springtide import _native  # noqa: F401
