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
