"""Imports a package's public names on first use, so that importing the package is fast and does not load torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `home` has the module of each public name."""

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(home))}")
        return getattr(importlib.import_module(home[name]), name)

    return find


def native_core(package: str) -> Any:
    """Return the compiled module of a package. Raise MissingNativeCore if Python cannot load it."""
    try:
        return importlib.import_module(f"{package}._native")
    except ImportError as error:
        from springtide import errors  # not needed by `import springtide`

        raise errors.MissingNativeCore(importlib.import_module(package).__path__[0], error) from error
