import io
import tarfile

import pytest

from springtide import errors
from springtide.platforms.k8s.client import submit


def names_in(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_code_archive_leaves_out_hidden_and_generated_files(tmp_path):
    for name in ("train.py", "lib/model.py", ".git/HEAD", "__pycache__/a.pyc", ".springtide/runs/x", "lib/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names_in(submit.pack(tmp_path)) == ["lib/model.py", "train.py"]


def test_same_files_give_the_same_archive(tmp_path):
    (tmp_path / "train.py").write_text("print()")
    first = submit.pack(tmp_path)
    (tmp_path / "train.py").touch()
    assert submit.pack(tmp_path) == first


def test_too_large_code_is_refused_naming_the_largest_file(tmp_path, seed):
    import random

    (tmp_path / "train.py").write_text("print()")
    (tmp_path / "weights.bin").write_bytes(random.Random(seed).randbytes(submit.MOST_BYTES + 1000))
    with pytest.raises(errors.BadInput, match=r"Largest: weights\.bin .*into an image"):
        submit.pack(tmp_path)
    (tmp_path / "huge").touch()
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(200 * submit.MOST_BYTES)  # a hole: nobody reads it
    with pytest.raises(errors.BadInput, match="huge"):
        submit.pack(tmp_path)
