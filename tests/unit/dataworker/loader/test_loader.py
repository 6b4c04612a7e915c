"""ElasticLoader in one process: a DataLoader's batches and behaviour, and a resumable state."""

import copy
import inspect
import json
import logging
import pickle
import threading

import pytest
import torch
from torch.utils import data

from springtide import errors
from springtide.data import ElasticLoader


class Numbers(data.Dataset):
    def __init__(self, count=23, poison=()):
        self.count, self.poison = count, poison

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.poison:
            raise ValueError(f"{index} is poison")
        return index, torch.rand(2)


class Counting(data.IterableDataset):
    def __iter__(self):
        return iter(range(10))


def loader(dataset=None, **given):
    return ElasticLoader(Numbers() if dataset is None else dataset, **{"batch_size": 4, "num_workers": 0, **given})


def ids(batches):
    return [batch[0].tolist() for batch in batches]


def flat(batches):
    return [index for batch in batches for index in batch]


def test_loader_takes_every_dataloader_argument_in_order():
    theirs, ours = (inspect.signature(kind).parameters for kind in (data.DataLoader, ElasticLoader))
    assert [name for name in ours if name in theirs] == list(theirs)
    given = {
        "timeout": 3.0,
        "prefetch_factor": 2,
        "persistent_workers": False,
        "pin_memory_device": "",
        "in_order": False,
    }
    made = loader(**given)
    assert {name: getattr(made, name) for name in given} == given
    assert ids(made) == ids(data.DataLoader(Numbers(), batch_size=4)), "in order, whatever is asked"


def test_unshuffled_loader_equals_a_dataloader():
    ours, theirs = loader(), data.DataLoader(Numbers(), batch_size=4)
    assert ids(ours) == ids(theirs)
    assert len(ours) == len(theirs) == 6
    assert len(loader(drop_last=True)) == 5


def test_loader_reshuffles_every_epoch_with_each_sample_once():
    shuffled = loader(shuffle=True, seed=3)
    first, second = ids(shuffled), ids(shuffled)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(23))
    assert ids(loader(shuffle=True, seed=3)) == first


def test_generator_sets_the_seed():
    def first(seed):
        return ids(loader(shuffle=True, generator=torch.Generator().manual_seed(seed)))

    assert first(1) == first(1) != first(2)


def test_random_numbers_of_a_sample_depend_on_its_batch_not_the_process():
    torch.manual_seed(1)
    first = [batch[1] for batch in loader(shuffle=True)]
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    again = [batch[1] for batch in loader(shuffle=True)]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("had", [0, 1, 5, 6])
def test_loaded_state_continues_after_the_last_batch_received(had, shuffle):
    first = loader(shuffle=shuffle, seed=8)
    whole = ids(_epoch(8, 0, shuffle))
    passing = iter(first)
    seen = ids(next(passing) for _ in range(had))
    state = json.loads(json.dumps(first.state_dict()))

    second = loader(shuffle=shuffle, seed=999)
    second.load_state_dict(state)
    assert seen + ids(second) == whole
    assert ids(second) == ids(_epoch(8, 1, shuffle))


def _epoch(seed, epoch, shuffle):
    one = loader(shuffle=shuffle, seed=seed)
    one.set_epoch(epoch)
    return one


def test_state_saved_between_epochs_starts_the_next():
    first = loader(shuffle=True)
    ids(first)
    assert first.epoch == 1
    second = loader(shuffle=True)
    second.load_state_dict(first.state_dict())
    assert ids(second) == ids(first)


def test_state_fits_another_batch_size_and_other_ranks():
    first = loader(shuffle=True, seed=1)
    passing = iter(first)
    seen = flat(ids(next(passing) for _ in range(3)))
    rest = []
    for rank in range(3):
        other = loader(shuffle=True, batch_size=2, rank=rank, world=3)
        other.load_state_dict(first.state_dict())
        rest += flat(ids(other))
    assert sorted(seen + rest) == list(range(23))


def test_set_epoch_of_a_loaded_state_keeps_its_position():
    first = loader(shuffle=True)
    first.set_epoch(4)
    next(iter(first))
    second = loader(shuffle=True)
    second.load_state_dict(first.state_dict())
    second.set_epoch(4)
    assert len(ids(second)) == 5
    second.set_epoch(4)
    assert len(ids(second)) == 6


def test_abandoned_loop_resumes_elsewhere_and_restarts_locally():
    first = loader(shuffle=True)
    for _ in first:
        break
    state = first.state_dict()
    assert (state["epoch"], state["done"]) == (0, 4)
    assert len(ids(first)) == 6
    assert first.epoch == 2


def test_loader_allows_one_loop_at_a_time():
    one = loader()
    earlier = iter(one)
    next(earlier)
    assert len(list(one)) == 6
    with pytest.raises(errors.BadInput, match="another loop over this ElasticLoader"):
        next(earlier)
    with pytest.raises(errors.BadInput, match="one loop at a time"):
        list(zip(one, one, strict=True))


def test_finished_iterator_stays_finished_when_another_starts():
    one = loader()
    earlier = iter(one)
    assert len(list(earlier)) == len(list(one)) == 6
    assert list(earlier) == []
    later = iter(one)
    next(later)
    one.close()
    assert list(later) == [], "as it was asked to"


def test_loader_attributes_are_readable_and_read_only():
    one = loader(batch_size=None)
    assert one.collate_fn is data.default_convert and loader().collate_fn is data.default_collate
    for name, value in {"batch_size": 7, "dataset": Numbers(), "sampler": [1], "drop_last": True}.items():
        with pytest.raises(errors.BadInput, match=f"{name} of a loader cannot be changed"):
            setattr(one, name, value)


def test_copying_a_loader_is_refused_with_an_alternative():
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"has processes: .* state_dict\(\)"):
            copying(loader())


def test_user_sampler_and_batch_sampler_are_accepted():
    assert ids(loader(sampler=[5, 3, 1, 0, 2])) == [[5, 3, 1, 0], [2]]
    batches = ElasticLoader(Numbers(), batch_sampler=[[1, 2], [0]], num_workers=0)
    assert ids(batches) == [[1, 2], [0]] and len(batches) == 2
    first = loader(sampler=data.RandomSampler(Numbers(), generator=torch.Generator().manual_seed(4)))
    passing = iter(first)
    seen = ids(next(passing) for _ in range(2))
    second = loader(sampler=data.RandomSampler(Numbers(), generator=torch.Generator().manual_seed(5)))
    second.load_state_dict(first.state_dict())
    assert sorted(flat(seen + ids(second))) == list(range(23))


def test_loader_with_batch_size_none_gives_single_samples():
    assert [one[0] for one in loader(batch_size=None)] == list(range(23))


def test_poison_sample_fails_the_loop_with_its_index_and_line():
    broken = loader(Numbers(poison={6}))
    passing = iter(broken)
    next(passing)
    with pytest.raises(
        errors.UnreadableSample, match=r"ValueError: 6 is poison \(test_loader.py:\d+\): sample 6 "
    ) as told:
        next(passing)
    assert told.value.indices == (6,)
    assert "raise ValueError" in told.value.__notes__[0]
    assert broken.state_dict()["done"] == 4


def test_poison_sample_is_skipped_and_listed(caplog):
    broken = loader(Numbers(poison={6, 20, 21, 22}), on_error="skip")
    with caplog.at_level(logging.WARNING):
        batches = ids(broken)
    assert flat(batches) == [index for index in range(20) if index != 6]
    assert [(one.index, one.epoch) for one in broken.skipped] == [(6, 0), (20, 0), (21, 0), (22, 0)]
    assert "sample 6 is skipped: ValueError: 6 is poison" in caplog.text


def test_iterable_dataset_uses_one_reader_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        stream = ElasticLoader(Counting(), batch_size=4, num_workers=0)
        assert [batch.tolist() for batch in stream] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        passing = iter(stream)
        next(passing)
        other = ElasticLoader(Counting(), batch_size=4, num_workers=0)
        other.load_state_dict(stream.state_dict())
        assert [batch.tolist() for batch in other] == [[4, 5, 6, 7], [8, 9]]
    assert caplog.text.count("its prefetched samples are lost") == 2
    assert "exact only if the data set yields the same samples" in caplog.text


class Locked(Numbers):
    """A data set that cannot be sent to another process."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Odd:
    """A batch that only this process knows."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(dataset=Locked()), "cannot pickle '_thread.lock'"),
        (dict(collate_fn=lambda samples: Odd()), "batch is of type tests.unit.dataworker.loader.test_loader.Odd"),
    ],
)
def test_loader_without_usable_data_workers_warns_once_and_reads_locally(given, said, caplog):
    alone = loader(num_workers=2, **given)
    assert (len(list(alone)), len(list(alone))) == (6, 6)
    assert (
        alone.pids == []
        and caplog.text.count("cannot start data workers, so this process makes its batches itself") == 1
    )
    assert said in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(num_workers=-1), "num_workers=-1: expected 0 or more"),
        (dict(num_workers="many"), "num_workers='many'"),
        (dict(batch_size=0), "batch_size=0"),
        (dict(batch_size=0, sampler=[1]), "batch_size=0"),
        (dict(batch_size=2.0), "batch_size=2.0: expected a whole number"),
        (dict(batch_size="4"), "batch_size='4'"),
        (dict(batch_size=True), "batch_size=True"),
        (dict(multiprocessing_context="threads"), "multiprocessing_context='threads': expected one of"),
        (dict(batch_sampler=[[1]], shuffle=True), "batch_sampler= makes the batches"),
        (dict(sampler=[1], shuffle=True), "sampler= decides the order"),
        (dict(batch_size=None, drop_last=True), "batch_size=None makes no batches"),
        (dict(dataset=Counting(), shuffle=True), "Counting is an IterableDataset"),
        (dict(dataset=Counting(), on_error="skip"), "needs a data set with indices"),
        (dict(dataset=iter([])), "has no len"),
        (dict(on_error="ignore"), "on_error='ignore'"),
        (dict(timeout=-1), "timeout=-1"),
        (dict(prefetch_factor=0), "prefetch_factor=0"),
        (dict(rank=1), "rank=1, world=None"),
    ],
)
def test_incompatible_loader_arguments_are_refused(given, said):
    with pytest.raises(errors.BadInput, match=said):
        loader(**given)


def test_state_of_another_dataset_is_refused():
    with pytest.raises(errors.BadInput, match="samples=23"):
        loader(Numbers(24)).load_state_dict(loader().state_dict())


def test_pin_memory_without_a_gpu_changes_nothing():
    assert ids(loader(pin_memory=True)) == ids(loader())
