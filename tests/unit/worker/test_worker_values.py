"""job.gather, job.reduce and job.divide of two workers, and what they refuse."""

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import torch

import springtide as st
from springtide import config, errors
from springtide.rpc.messages.coordination import GatherReply, GatherRequest
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link
from tests.unit.worker import clicks

WORKERS = 2


class GatherMaster(LocalMaster):
    """Master of one of several workers, which gathers the values of all of them."""

    def __init__(self, settings, rank, barrier, given):
        super().__init__(settings)
        self.rank, self.barrier, self.given = rank, barrier, given

    def welcome(self):
        return msgspec.structs.replace(super().welcome(), rank=self.rank)

    def ask(self, request):
        if not isinstance(request, GatherRequest):
            return super().ask(request)
        values = self.given.setdefault((request.place, request.number), {})
        values[self.rank] = request.value
        self.barrier.wait(60)
        return GatherReply(values)


def on_all_workers(act):
    """Results of act(job) by rank, each in its thread."""
    settings, barrier, given = config.load({}), threading.Barrier(WORKERS), {}

    def run(rank):
        return act(Job(settings, local_link(settings, GatherMaster(settings, rank, barrier, given))))

    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(run, range(WORKERS)))


@pytest.mark.parametrize(
    ("how", "number", "tensor"),
    [("sum", 5, [1.0, 7.0]), ("mean", 2.5, [0.5, 3.5]), ("max", 3, [1.0, 5.0]), ("min", 2, [0.0, 2.0])],
)
def test_numbers_and_tensors_are_reduced_by_name(how, number, tensor):
    def act(job):
        values = {"number": 2 + job.rank, "tensor": torch.tensor([float(job.rank), 2.0 + 3 * job.rank])}
        return job.reduce(values, how)

    for result in on_all_workers(act):
        assert result["number"] == number
        assert result["tensor"].tolist() == tensor


def test_mean_counts_weights_and_leaves_out_workers_without_any():
    assert on_all_workers(lambda job: job.reduce(float(job.rank), "mean", weight=1 + 2 * job.rank)) == [0.75, 0.75]
    empty = on_all_workers(lambda job: job.reduce(float("nan") if job.rank else 4.0, "mean", weight=1 - job.rank))
    assert empty == [4.0, 4.0]


def test_one_decision_counts_for_all_workers():
    assert on_all_workers(lambda job: job.reduce(job.rank == 1, "max")) == [True, True]


def test_scalars_and_weights_that_require_gradients_are_taken():
    assert on_all_workers(lambda job: job.reduce(np.float32(1.5))) == [3.0, 3.0]
    assert on_all_workers(lambda job: job.reduce(torch.ones(1, requires_grad=True)).tolist()) == [[2.0], [2.0]]


def test_worker_without_samples_may_give_zero_where_others_give_a_tensor():
    results = on_all_workers(lambda job: job.reduce(torch.tensor(1.5) if job.rank else 0))
    assert [result.item() for result in results] == [1.5, 1.5]


def test_gathered_values_are_in_the_order_of_ranks():
    assert (
        on_all_workers(lambda job: job.gather({"rank": job.rank, "names": ["a"]}))
        == [[{"rank": 0, "names": ["a"]}, {"rank": 1, "names": ["a"]}]] * 2
    )


def test_parts_of_all_workers_are_the_whole_data_set():
    assert on_all_workers(lambda job: list(job.divide([10, 11, 12, 13, 14]))) == [[10, 11], [12, 13, 14]]


def test_lone_worker_gets_its_own_values():
    job = st.join()
    assert job.gather(7) == [7]
    assert job.reduce(7.0, "mean") == 7.0
    assert list(job.divide(range(3))) == [0, 1, 2]


def test_call_in_a_loop_over_batches_is_refused_and_after_it_is_not():
    model, dataset = clicks.make()
    job = st.join()
    model, _, batches = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=20)
    for _ in job.epochs(2):
        for _ in batches:
            with pytest.raises(errors.BadInput, match="in the middle of a loop over batches"):
                job.reduce(1)
            break
        assert job.reduce(1) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda rank: torch.zeros(2 + rank), r"different values: \(2,\) by worker 0, \(3,\) by worker 1"),
        (lambda rank: {"a": 1} if rank else {"b": 1}, r"different values: \['b'\] by worker 0, \['a'\] by worker 1"),
        (lambda rank: "text", "got a str, expected a number, a tensor"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(value, message):
    with pytest.raises(errors.BadInput, match=message):
        on_all_workers(lambda job: job.reduce(value(job.rank)))


def test_unknown_reductions_and_weights_that_count_nothing_are_refused():
    job = st.join()
    with pytest.raises(errors.UnknownName, match="median"):
        job.reduce(1, "median")
    with pytest.raises(errors.BadInput, match='only "mean" has weights'):
        job.reduce(1, "sum", weight=2)
    with pytest.raises(errors.BadInput, match="no worker gave a weight above 0"):
        job.reduce(1, "mean", weight=0)


@pytest.mark.extra("torchmetrics")
@pytest.mark.filterwarnings("ignore")
def test_metrics_of_torchmetrics_sum_over_workers():
    from torchmetrics.classification import BinaryAUROC

    chance = torch.Generator().manual_seed(1)
    predictions, labels = torch.rand(100, generator=chance), torch.randint(0, 2, (100,), generator=chance)
    expected = BinaryAUROC()(predictions, labels)

    def act(job):
        metric = BinaryAUROC(dist_sync_fn=lambda state, group: job.gather(state), distributed_available_fn=lambda: True)
        part = job.divide(torch.utils.data.TensorDataset(predictions, labels))
        for prediction, label in torch.utils.data.DataLoader(part, batch_size=7):
            metric.update(prediction, label)
        return metric.compute().item()

    assert on_all_workers(act) == pytest.approx([expected.item()] * 2)
