import gc

import pytest

from springtide import large_imports


def test_imported_objects_are_never_searched_for_garbage():
    before = gc.get_freeze_count()
    with large_imports.without_collection():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled() and gc.get_freeze_count() - before >= len(made)


def test_garbage_is_collected_again_after_a_failed_import():
    with pytest.raises(ImportError), large_imports.without_collection():
        raise ImportError
    assert gc.isenabled()
