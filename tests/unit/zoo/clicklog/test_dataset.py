"""The click log as a data set."""

import errno

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from springtide import errors, zoo
from springtide.zoo import array_files, metrics
from springtide.zoo.clicklog import dataset
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.generator import Generator
from springtide.zoo.clicklog.population import LogSpec
from springtide.zoo.layers import ClickBatch
from tests.unit.data.stream.made_records import records_of

FIELDS = (500, 200, 20, 30, 12, 50)
SMALL = LogSpec(seed=5, cardinalities=FIELDS)
MODEL_OF_KIND = {"click": "widedeep", "pair": "ncf", "rating": "ncf", "history": "din"}


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip((*a[0], a[1]), (*b[0], b[1]), strict=True))


@pytest.mark.parametrize("kind", ["click", "rank", "pair", "rating", "history"])
def test_batch_is_the_same_precomputed_in_files_or_on_demand(kind, tmp_path):
    index = np.array([3, 3, 999, 0, 512])
    ahead = ClickLog(1000, kind=kind, spec=SMALL)
    for other in (
        ClickLog(1000, kind=kind, spec=SMALL, ahead=False),
        ClickLog(1000, kind=kind, spec=SMALL, folder=tmp_path),
        ClickLog(1000, kind=kind, spec=SMALL, folder=tmp_path),
    ):
        assert len(other) == 1000
        assert equal(ahead.batch(index), other.batch(index))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", sorted(MODEL_OF_KIND))
def test_model_of_its_kind_accepts_the_samples(kind):
    log = ClickLog(200, kind=kind, spec=SMALL)
    model = zoo.model(MODEL_OF_KIND[kind], tables=log.tables)
    x, y = log.batch(np.arange(200))
    assert model(x).shape == y.shape


def test_ranker_accepts_the_samples_of_its_kind():
    log = ClickLog(50, kind="rank")
    x, y = log.batch(np.arange(50))
    zoo.loss(zoo.model("mmoe", tables=log.tables)(x), y).backward()


def test_dataloader_sees_the_same_batches():
    log = ClickLog(64, spec=SMALL)
    (x, y), *_ = DataLoader(log, batch_size=16)
    assert equal((x, y), log.batch(np.arange(16)))
    one_x, one_y = log[-1]
    assert torch.equal(one_x.sparse, log.batch(np.array([63]))[0].sparse[0])
    assert one_y.dim() == 0


def test_split_is_the_end_of_the_log():
    log = ClickLog(1000, spec=SMALL)
    train, test = log.split(0.2)
    assert (len(train), len(test)) == (800, 200)
    assert equal(test.batch(np.arange(200)), log.batch(np.arange(800, 1000)))
    lazy_train, lazy_test = ClickLog(1000, spec=SMALL, ahead=False).split(0.2)
    assert equal(test.batch(np.arange(5)), lazy_test.batch(np.arange(5)))
    assert equal(train.batch(np.arange(5)), lazy_train.batch(np.arange(5)))
    assert test.best_auc() == lazy_test.best_auc()


def test_truth_of_a_part_is_that_of_its_samples():
    _, test = ClickLog(10_000, spec=SMALL).split(0.5)
    _, y = test.batch(np.arange(5000))
    labels, _ = test.truth()
    np.testing.assert_array_equal(labels, y.numpy())
    assert test.drawn_auc() == pytest.approx(test.best_auc(), abs=0.02)


def test_trained_model_comes_near_the_known_best():
    torch.manual_seed(0)
    train, test = ClickLog(60_000, spec=LogSpec(seed=5, cardinalities=FIELDS, interaction_strength=0.3)).split(0.2)
    model = zoo.model("widedeep", tables=train.tables, dim=4, hidden=(32,))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    random = np.random.default_rng(0)
    for indices in np.array_split(random.permutation(len(train)), len(train) // 512):
        x, y = train.batch(indices)
        optimizer.zero_grad()
        zoo.loss(model(x), y).backward()
        optimizer.step()
    x, y = test.batch(np.arange(len(test)))
    with torch.no_grad():
        reached = metrics.auc(y, model(x))
    assert test.best_auc() - 0.03 < reached < test.best_auc() + 0.01


def test_invalid_click_log_arguments_are_refused():
    log = ClickLog(10, spec=SMALL)
    with pytest.raises(errors.UnknownName, match="Did you mean 'history'"):
        ClickLog(10, kind="histori")
    with pytest.raises(errors.BadInput, match="at least one sample"):
        ClickLog(0)
    with pytest.raises(errors.BadInput, match="expected 0 to 9"):
        log.batch(np.array([10]))
    with pytest.raises(IndexError, match="index 10"):
        log[10]
    with pytest.raises(errors.BadInput, match="leaves one part empty"):
        log.split(0.0)
    with pytest.raises(errors.BadInput, match="not within"):
        log.part(5, 11)


def test_full_disk_is_reported_and_leaves_no_file(tmp_path, monkeypatch):
    def no_room(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(array_files, "_publish", no_room)
    with pytest.raises(errors.DiskFull, match="MiB are free"):
        ClickLog(100, spec=SMALL, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_generating_the_same_files_both_get_them(tmp_path, monkeypatch):
    publish = array_files._publish

    def after_another(*given):
        monkeypatch.setattr(array_files, "_publish", publish)
        ClickLog(100, spec=SMALL, folder=tmp_path)
        publish(*given)

    monkeypatch.setattr(array_files, "_publish", after_another)
    late = ClickLog(100, spec=SMALL, folder=tmp_path)
    assert equal(late.batch(np.arange(9)), ClickLog(100, spec=SMALL).batch(np.arange(9)))
    assert len(list(tmp_path.iterdir())) == 1


def test_records_decode_to_their_samples() -> None:
    rows = dataset.Clicks(seed=3).take(10, 20)
    made = Generator(LogSpec(seed=3)).between(10, 30)
    parsed = dataset.decoder().parse(records_of([row.tobytes() for row in rows]))
    x, y = parsed.batch(~parsed.bad)
    assert isinstance(x, ClickBatch)
    np.testing.assert_array_equal(x.sparse.numpy(), made.sparse)
    np.testing.assert_array_equal(x.dense.numpy(), made.dense)
    np.testing.assert_array_equal(y.numpy(), made.click)
