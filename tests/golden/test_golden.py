"""Files of every version that was ever released are read, and files of a newer version are refused in one sentence."""

import hashlib
import json
import pathlib
import shutil
from typing import Any

import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.launch.spec import resolve
from tests.golden.formats import CONTENTS, FILES, FORMATS, GoldenFormat

RECORDED = sorted(path.name for path in FILES.iterdir())


def copied(name: str, to: pathlib.Path) -> tuple[GoldenFormat, pathlib.Path, Any]:
    """A format, a copy of its files that a test may change, and their contents."""
    folder = to / name
    shutil.copytree(FILES / name, folder)
    contents = json.loads((folder / CONTENTS).read_text())
    (folder / CONTENTS).unlink()
    return FORMATS[name.rpartition("-")[0]], folder, contents


def is_part(golden: Any, found: Any) -> bool:
    """Whether everything recorded is still there. A newer version may know more fields."""
    if isinstance(golden, dict):
        return all(name in found and is_part(value, found[name]) for name, value in golden.items())
    if isinstance(golden, list) and isinstance(found, (list, tuple)):
        return len(golden) == len(found) and all(map(is_part, golden, found))
    return bool(golden == found)


def digests(folder: pathlib.Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_format_has_files_of_its_present_version():
    """After a change of a version: run tests/golden/formats.py, which adds files and keeps the earlier ones."""
    assert {f"{name}-{form.version}" for name, form in FORMATS.items()} <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_are_read_as_they_were_written(name, tmp_path):
    form, folder, contents = copied(name, tmp_path)
    found = json.loads(json.dumps(form.read(folder), default=repr))
    assert is_part(contents, found), found


@pytest.mark.parametrize("name", [f"{name}-{form.version}" for name, form in FORMATS.items()])
def test_files_of_a_newer_version_are_refused_in_a_sentence_and_left_as_they_are(name, tmp_path):
    form, folder, _ = copied(name, tmp_path)
    newer = form.newer(folder)
    assert newer == form.version + 1
    before = digests(folder)
    for _ in range(2):
        with pytest.raises(errors.SpringtideError) as refused:
            form.read(folder)
        text = str(refused.value)
        assert "\n" not in text and str(newer) in text and str(form.version) in text, text
        assert any(remedy in text for remedy in ("use the version", "use version", "run versions", "with the version"))
    assert digests(folder) == before


def test_a_job_does_not_go_back_to_an_older_checkpoint_because_the_newest_is_of_a_newer_version(tmp_path):
    form, folder, _ = copied(f"checkpoint-{FORMATS['checkpoint'].version}", tmp_path)
    form.newer(folder)
    said: list[str] = []
    with pytest.raises(errors.OtherVersion, match=r"checkpoint 2 in .* has format 6, .* this one reads 5"):
        resolve.find_checkpoint(str(folder), said.append)
    assert not said and checkpoint_io.read(str(folder), 1).number == 1
