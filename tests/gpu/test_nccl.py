"""Test bsp over NCCL as far as one GPU allows: a single rank, a rank without its peer, two ranks on one GPU."""

import datetime
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from springtide import config, errors
from springtide.worker.bsp import allreduce, nccl
from springtide.worker.bsp.allreduce import GroupStore
from tests.unit.worker.bsp.test_allreduce import link_of
from tests.unit.worker.ranks import Meeting

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GPU = torch.device("cuda", 0)
leaves_a_thread = pytest.mark.skipif(
    not os.environ.get("SPRINGTIDE_TEST_NCCL_THREADS"), reason="leaves a thread in NCCL: SPRINGTIDE_TEST_NCCL_THREADS=1"
)


def connected(generation=1):
    """A communicator of a world of one."""
    store = GroupStore(link_of(0, Meeting(1)), generation)
    with config.default_environment(nccl.SETTINGS | nccl.LOOPBACK):
        group = nccl.open_group(store, rank=0, workers=1, device=GPU, lost=lambda: False)
        group.connect()
    return group


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Let CUDA and NCCL open their process-wide files before a test is checked for leaks."""
    connected().abort()


@pytest.fixture(autouse=True)
def _unbroken(monkeypatch):
    monkeypatch.setattr(nccl, "_broken", False)


@pytest.fixture
def world_of_one():
    group = connected()
    yield group
    group.abort()


def test_gpu_reports_its_identity():
    assert len(nccl.device_id(GPU)) > 8


def test_single_rank_nccl_sums_and_is_aborted_twice_without_harm(world_of_one):
    tensor = torch.arange(1000.0, device=GPU)
    for _ in range(3):
        world_of_one.allreduce(tensor)
    assert tensor.tolist() == list(range(1000))
    world_of_one.abort()
    world_of_one.abort()
    assert (torch.ones(2, device=GPU) + 1).tolist() == [2.0, 2.0], "the device is as it was"


def test_new_communicator_works_after_an_aborted_one():
    for generation in (1, 2):
        group = connected(generation)
        tensor = torch.ones(5, device=GPU)
        group.allreduce(tensor)
        assert tensor.tolist() == [1.0] * 5
        group.abort()


def test_sum_on_a_busy_device_is_aborted_when_a_member_is_lost(world_of_one):
    lost = threading.Event()
    world_of_one._lost = lost.is_set
    torch.cuda._sleep(int(2e9))  # about a second
    lost.set()
    began = time.monotonic()
    with pytest.raises(errors.GroupChanged, match="a member of the group is lost"):
        world_of_one.allreduce(torch.ones(1, device=GPU))
    print("freed after", time.monotonic() - began, "s")


@leaves_a_thread
def test_connecting_rank_is_freed_if_the_other_never_comes():
    meeting, lost = Meeting(2), threading.Event()
    with config.default_environment(nccl.SETTINGS | nccl.LOOPBACK):
        group = nccl.open_group(GroupStore(link_of(0, meeting), 1), rank=0, workers=2, device=GPU, lost=lost.is_set)
        threading.Timer(3.0, lost.set).start()
        began = time.monotonic()
        with pytest.raises(errors.GroupChanged, match="a member of the group is lost"):
            group.connect()
    print("freed after", time.monotonic() - began, "s")


def form_two_ranks(devices):
    """Form a group of two ranks, threads of this process, that name these devices."""
    meeting, groups = Meeting(2), []

    def form(rank):
        store = GroupStore(link_of(rank, meeting), 1, **{f"{nccl.DEVICE}{rank}": devices[rank]})
        gloo = allreduce.form_group(store, rank=rank, workers=2, host="127.0.0.1")
        groups.append(gloo)
        place = {"rank": rank, "workers": 2, "host": "127.0.0.1", "device": GPU}
        return nccl.form(store, gloo, lost=lambda: False, **place)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(form, range(2)))


def test_two_ranks_on_one_gpu_are_detected_and_use_gloo():
    assert form_two_ranks([nccl.device_id(GPU)] * 2) == [None, None]
    assert not nccl._broken, "NCCL was not even tried"


@leaves_a_thread
def test_undetected_shared_gpu_is_refused_by_nccl_and_falls_back_to_gloo(monkeypatch):
    monkeypatch.setattr(allreduce, "MEETING", datetime.timedelta(seconds=20))
    assert form_two_ranks(["one", "other"]) == [None, None]
    assert nccl._broken
