"""Packages survive writing and loading; only data sealed by the job is unpickled."""

import os
import pickle
import runpy
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.dataworker.feed.worker import Pipeline, PipelineStage
from springtide.dataworker.processes import job_package

SECRET = b"s" * 32


class DatasetOf:
    """A data set of any value."""

    def __init__(self, value):
        self.value = value

    def __call__(self, indices):
        return self.value


def round_trip(value, folder):
    job_package.write(folder, Pipeline((PipelineStage("dataset", DatasetOf(value)),)), secret=SECRET, paths=[])
    return job_package.load(folder, secret=SECRET)(np.arange(1))


def test_functions_of_the_script_are_packaged(tmp_path):
    factor = 3

    class Local:
        def __getitem__(self, index):
            return index * factor

    dataset = Local()
    pipeline = Pipeline(
        (PipelineStage("dataset", lambda indices: [dataset[i] for i in indices]), PipelineStage("sum", sum))
    )
    digest = job_package.write(tmp_path / "package", pipeline, secret=SECRET, paths=sys.path)
    assert job_package.load(tmp_path / "package", secret=SECRET)([1, 2]) == 9
    assert len(digest) == 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (300, 40)])
def test_tensors_of_any_kind_and_size_are_packaged(dtype, shape, tmp_path):
    sent = (torch.rand(shape) * 10).to(dtype)
    found = round_trip(sent, tmp_path)
    assert found.dtype == dtype and torch.equal(found, sent)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 5), st.randoms())
def test_views_keep_their_strides(tmp_path_factory, sizes, skip, random):
    whole = torch.arange(1000)
    strides = [random.randrange(0, 40) for _ in sizes]
    sent = whole.as_strided(sizes, strides, skip)
    found = round_trip(sent, tmp_path_factory.mktemp("package"))
    assert torch.equal(found, sent) and found.stride() == sent.stride()


def test_tensors_sharing_memory_are_written_once_and_keep_sharing_it(tmp_path):
    whole = torch.rand(1000, 100)
    one, other = round_trip([whole, whole[10:20]], tmp_path)
    assert one[10:20].data_ptr() == other.data_ptr()
    assert whole.nbytes <= (tmp_path / "arrays").stat().st_size < whole.nbytes + 4096
    assert (tmp_path / "code").stat().st_size < 4096


def test_packaged_arrays_are_mapped_copy_on_write(tmp_path):
    sent = {"large": np.arange(10_000), "small": np.arange(3), "text": np.array(["a", "bc"]), "f": np.ones((50, 60)).T}
    found = round_trip(sent, tmp_path)
    for key, value in sent.items():
        assert np.array_equal(found[key], value)
    found["large"][0] = 7
    assert job_package.load(tmp_path, secret=SECRET)(None)["large"][0] == 0


def test_mapped_file_is_mapped_again_instead_of_copied(tmp_path):
    path = tmp_path / "features.npy"
    sent = np.memmap(path, dtype=np.float32, mode="w+", shape=(1000, 10))
    sent[:] = 5
    sent.flush()
    found = round_trip(sent, tmp_path / "package")
    assert isinstance(found, np.memmap) and np.array_equal(found, sent)
    assert (tmp_path / "package" / "arrays").stat().st_size == 0
    part = round_trip(sent[10:20], tmp_path / "package")
    assert np.array_equal(part, sent[10:20])


def test_parameters_and_modules_are_packaged(tmp_path):
    module = torch.nn.Linear(4, 3)
    found = round_trip(module, tmp_path)
    assert torch.equal(found.weight, module.weight) and found.weight.requires_grad


def test_unpicklable_object_is_refused_with_advice(tmp_path):
    with pytest.raises(errors.BadInput, match=r"cannot pickle '_thread.lock'.*__getstate__"):
        round_trip(threading.Lock(), tmp_path)


class UnpicklingTrap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize("forge", ["secret", "code", "contents"])
def test_package_without_the_jobs_seal_is_not_unpickled(forge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "package"
    job_package.write(folder, Pipeline(()), secret=b"other" if forge == "secret" else SECRET, paths=[])
    if forge == "code":
        (folder / "code").write_bytes(pickle.dumps(UnpicklingTrap()))
    if forge == "contents":
        raw = bytearray((folder / "contents").read_bytes())
        raw[-1] ^= 1
        (folder / "contents").write_bytes(raw)
    with pytest.raises(errors.BadInput, match="its seal"):
        job_package.load(folder, secret=SECRET)
    assert not (tmp_path / "sprung").exists()


def test_missing_or_truncated_package_is_reported(tmp_path):
    with pytest.raises(errors.MissingFile, match="no package at"):
        job_package.load(tmp_path, secret=SECRET)
    round_trip(np.arange(1000), tmp_path)
    (tmp_path / "arrays").write_bytes(b"short")
    with pytest.raises(errors.BadInput, match="is cut short"):
        job_package.load(tmp_path, secret=SECRET)


@pytest.mark.process
def test_another_process_imports_the_users_modules_from_the_same_paths(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class Data:\n    def __call__(self, indices):\n        return 'mine'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pathlib, mine\nfrom springtide.dataworker.processes import job_package as package\n"
        "from springtide.dataworker.feed.worker import *\n"
        "def last(text):\n    return text.upper()\n"
        "stages = (PipelineStage('a', mine.Data()), PipelineStage('b', last))\n"
        "package.write(pathlib.Path('p'), Pipeline(stages), secret=b's'*32,"
        " paths=sys.path)\n"
    )
    load = (
        "import pathlib; from springtide.dataworker.processes import job_package as package;"
        "print(package.load(pathlib.Path('p'), secret=b's'*32)(None))"
    )
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"]}
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        here.syspath_prepend(tmp_path)
        runpy.run_path(str(script), run_name="__main__")
    del sys.modules["mine"]
    (tmp_path / "script.py").unlink()
    done = subprocess.run(
        [sys.executable, "-P", "-c", load], cwd=tmp_path, check=True, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "MINE\n"


def test_unwritable_package_folder_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.DiskFull, match="cannot be written to"):
        round_trip(1, tmp_path / "file" / "package")
