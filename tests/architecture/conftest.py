"""Parse each source once for all tests of this folder, and forget the syntax trees at its end."""

import gc
from collections.abc import Iterator

import pytest

from tests.architecture import sources


@pytest.fixture(autouse=True, scope="package")
def _trees_are_shared() -> Iterator[None]:
    gc.disable()  # a million nodes without cycles, which the collector would visit again and again
    yield
    sources.nodes.cache_clear()
    sources.tree.cache_clear()
    gc.enable()
