"""List the GPUs of a machine without torch, as CUDA counts them."""

import sys
from types import SimpleNamespace

import pytest

from springtide import config
from springtide.domain.core.resources import GpuUse
from springtide.telemetry.host import gpus, usage

LIST = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b7a3c1f2-0000-1111-2222-333344445555)
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Make a machine with this number of cards."""

    def make(number):
        for card in range(number):
            (tmp_path / f"nvidia{card}").touch()
        (tmp_path / "nvidiactl").touch()

    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    gpus._listed.cache_clear()
    yield make
    gpus._listed.cache_clear()


def test_whole_gpus_and_mig_instances_are_listed():
    assert gpus.parse_list(LIST) == (
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
        "GPU-b7a3c1f2-0000-1111-2222-333344445555",
    )
    assert gpus.parse_list("NVIDIA-SMI has failed because it could not talk to the driver.\n") == ()


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("", ()),
        ("1,0", ("1", "0")),
        ("0, 1,5,0", ("0", "1")),
        ("1,-1,0", ("1",)),
        ("NoDevFiles", ()),
        ("GPU-5d5b,MIG-c6d4", ("GPU-5d5b", "MIG-c6d4")),
        ("0,0", ("0",)),
    ],
)
def test_cuda_visible_devices_ends_at_an_invalid_entry(text, devices):
    assert gpus.parse_limit(text, cards=2) == devices
    assert gpus.parse_limit(text, cards=0) == ()


def test_without_nvidia_smi_the_device_files_count(cards, monkeypatch):
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    cards(2)
    assert gpus.visible() == ("0", "1")


def test_job_variable_overrides_the_shells(cards, monkeypatch):
    cards(3)
    monkeypatch.setenv(gpus.VARIABLE, "2,1")
    assert gpus.visible() == ("2", "1")
    assert gpus.visible({gpus.VARIABLE: "0"}) == ("0",)
    assert gpus.visible({gpus.VARIABLE: ""}) == ()


def test_machine_without_gpus_ignores_cuda_visible_devices(cards, monkeypatch):
    cards(0)
    assert gpus.visible() == ()
    monkeypatch.setenv(gpus.VARIABLE, "0")
    assert gpus.visible() == ()


@pytest.fixture
def torch_with(monkeypatch):
    """Install a fake torch that has reserved this much on each 1,000-byte card."""

    def place(*reserved):
        cuda = SimpleNamespace(
            is_initialized=lambda: bool(reserved),
            device_count=lambda: len(reserved),
            memory_reserved=lambda card: reserved[card],
            memory_allocated=lambda card: reserved[card] // 2,
            get_device_properties=lambda card: SimpleNamespace(total_memory=1000, uuid=f"u{card}"),
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    return place


def test_process_counts_the_gpus_on_which_it_has_memory(torch_with, monkeypatch):
    torch_with(400, 0)
    assert gpus.own_use() == GpuUse(memory=400, allocated=200, total=1000)
    monkeypatch.setattr(gpus, "busy_share", lambda uuid: {"u0": 0.5, "u1": 1.0}[uuid])
    torch_with(400, 100)
    assert gpus.own_use() == GpuUse(memory=500, allocated=250, total=2000, busy=0.75)


def test_process_without_gpu_use_measures_none(torch_with, monkeypatch):
    torch_with()
    assert gpus.own_use() is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # another thread imports it now
    assert gpus.own_use() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert gpus.own_use() is None


def test_worker_measures_its_gpu_even_if_the_agent_measures_the_rest(torch_with):
    settings = config.load(environ={}, overrides={"member": "worker-1", "report_usage": False})
    assert usage.OwnUsage(settings).read() is None
    torch_with(300)
    assert usage.OwnUsage(settings).read().gpu == GpuUse(memory=300, allocated=150, total=1000)


def test_gpu_load_is_unknown_without_the_driver_library(monkeypatch):
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    assert gpus.busy_share("5d5b") is None
