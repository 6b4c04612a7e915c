"""Which groups sum over NCCL, and how a rank gets out of a sum that never ends. gloo stands in for NCCL here; tests/gpu
has what one GPU can show of NCCL itself."""

import datetime
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from springtide import config, errors
from springtide.worker.bsp import allreduce, nccl
from springtide.worker.bsp.allreduce import GroupStore
from tests.unit.worker.bsp.test_allreduce import link_of
from tests.unit.worker.ranks import Meeting

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("ids", "apart"), [(["a", "b"], True), (["a", "a"], False), (["a", ""], False), (["", ""], False), (["a"], True)]
)
def test_nccl_needs_one_gpu_per_rank(ids, apart):
    assert nccl.all_apart(ids) == apart


def test_worker_on_the_cpu_names_no_gpu():
    assert nccl.device_id(CPU) == nccl.device_id(None) == ""


class FakeNccl(nccl.NcclGroup):
    """Sums over its own gloo group and counts aborts."""

    aborted, left = 0, None

    def begin(self, tensor):
        return self._group.allreduce([tensor]).is_completed

    def abort(self):
        if self._group is not None:  # gloo cannot abort: the test lets the sum end before it drops the group
            self.aborted, self.left, self._group = self.aborted + 1, self._group, None


@pytest.fixture(autouse=True)
def fake_nccl(monkeypatch):
    def open_group(store, *, rank, workers, device, lost):
        if "broken" in store.values(nccl.DEVICE, workers)[rank]:
            raise RuntimeError("NCCL error: invalid usage")
        apart = torch.distributed.PrefixStore("nccl", store)
        return FakeNccl(allreduce.form_group(apart, rank=rank, workers=workers, host="127.0.0.1"), store, CPU, lost)

    monkeypatch.setattr(nccl, "open_group", open_group)
    monkeypatch.setattr(nccl, "_broken", False)


class Ranks:
    """Ranks that form groups through a master, as worker/bsp/group.py does. `lost`: the master's answer."""

    def __init__(self, *devices):
        self.devices, self.meeting, self.lost = devices, Meeting(len(devices)), threading.Event()

    def form(self, rank, generation):
        count = len(self.devices)
        store = GroupStore(link_of(rank, self.meeting), generation, **{f"{nccl.DEVICE}{rank}": self.devices[rank]})
        gloo = allreduce.form_group(store, rank=rank, workers=count, host="127.0.0.1")
        place = {"rank": rank, "workers": count, "host": "127.0.0.1", "device": CPU}
        return gloo, nccl.form(store, gloo, lost=self.lost.is_set, **place)

    def run(self, work):
        with ThreadPoolExecutor(len(self.devices)) as pool:
            return list(pool.map(work, range(len(self.devices))))


def step(reducer, rank):
    reducer.params[0].grad = torch.tensor([4.0 * (rank + 1)])
    reducer.load(share=0.5, skip=False)
    reducer.reduce()
    return reducer.params[0].grad.item()


@pytest.mark.parametrize(
    ("devices", "over_nccl"), [(("a", "b", "c"), True), (("a", "b", "a"), False), (("a", ""), False)]
)
def test_all_ranks_choose_the_same_backend_from_exchanged_gpus(devices, over_nccl):
    ranks = Ranks(*devices)

    def work(rank):
        reducer = allreduce.Reducer([nn.Parameter(torch.zeros(1))], None)
        reducer.group, reducer.nccl = ranks.form(rank, 1)
        assert (reducer.nccl is not None) == over_nccl
        return step(reducer, rank)

    total = sum(2.0 * (rank + 1) for rank in range(len(devices)))
    assert ranks.run(work) == [total] * len(devices)


def test_nccl_failure_on_one_rank_moves_the_group_to_gloo_for_good(monkeypatch):
    ranks = Ranks("a", "broken")

    def connect(self):
        if self._lost():
            raise errors.GroupChanged("lost")  # the others wait for a rank that failed, until their limit

    monkeypatch.setattr(FakeNccl, "connect", connect)
    monkeypatch.setattr(allreduce, "form_group", form_alone_if_nccl(allreduce.form_group))
    assert ranks.run(lambda rank: ranks.form(rank, 1)[1]) == [None, None]
    assert nccl._broken and nccl.device_id(torch.device("cuda")) == ""


def form_alone_if_nccl(form):
    def form_group(store, **place):
        return form(store, **place) if isinstance(store, GroupStore) else object()

    return form_group


def test_rank_waiting_in_an_nccl_sum_is_freed_when_a_member_is_lost():
    ranks = Ranks("a", "b")
    second = threading.Barrier(2)

    def work(rank):
        reducer = allreduce.Reducer([nn.Parameter(torch.zeros(1))], None)
        reducer.group, reducer.nccl = ranks.form(rank, 1)
        sums, before = [step(reducer, rank)], reducer.nccl
        if rank == 0:
            threading.Timer(0.05, ranks.lost.set).start()
            with pytest.raises(
                errors.GroupChanged, match="a member of the group is lost: NCCL's communicator is aborted"
            ):
                step(reducer, rank)  # rank 1 never comes
            assert before.aborted == 1
        second.wait(60)
        if rank == 1:
            reducer.nccl._group.allreduce([reducer._buckets[0].flat]).wait()
        reducer.leave()
        assert reducer.nccl is None and before.aborted == 1
        ranks.lost.clear()
        second.wait(60)
        reducer.group, reducer.nccl = ranks.form(rank, 2)
        assert reducer.nccl is not before
        return [*sums, step(reducer, rank)]

    assert ranks.run(work) == [[6.0, 6.0]] * 2


def test_nccl_wait_times_out_even_if_the_master_reports_no_loss():
    group = FakeNccl(object(), None, CPU, lambda: False)
    with pytest.raises(errors.GroupChanged, match="no sum in 0 s"):
        group.await_done(lambda: False, datetime.timedelta())
    assert group.aborted == 1


def test_nccl_settings_of_the_user_stay_and_ours_are_removed(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    with config.default_environment(nccl.SETTINGS | nccl.LOOPBACK):
        assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7" and os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7" and "TORCH_NCCL_ENABLE_MONITORING" not in os.environ


def test_gradients_follow_a_model_that_changes_dtype_after_prepare():
    param = nn.Parameter(torch.zeros(2))
    reducer = allreduce.Reducer([param], None)
    param.data = param.data.double()
    param.grad = torch.ones(2, dtype=torch.float64)
    reducer.load(share=1.0, skip=False)
    reducer.deal()
    assert param.grad.dtype == torch.float64
