"""Scheduled allocation of batches: every sample is trained once, with the model of contiguous allocation."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import springtide as st
from springtide.domain.model.cache_rules import CacheUse
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.cache.sample_allocation import NOT_YET, SampleAllocator
from springtide.worker.input.batch_plan import AllottedBatch, ReadBatch
from tests.unit.worker import clicks, ranks

BATCH = 20


def train(group, *, samples=200, epochs=1, model_of=clicks.make, optimizer=torch.optim.SGD, **options):
    """Each rank's samples by batch, its losses, and the final model."""

    made = [model_of(samples=samples) for _ in range(group.workers)]  # here: threads share torch's seed

    def work(job):
        model, dataset = made[job.rank]
        x, y = dataset.tensors
        numbered = TensorDataset(torch.cat([x, torch.arange(samples)[:, None]], dim=1), y)
        model, optimizer_, batches = job.prepare(
            model,
            optimizer(model.parameters(), lr=0.1),
            numbered,
            batch_size=BATCH,
            epochs=epochs,
            shuffle=False,
            **options,
        )
        had, losses = [], []
        for x, y in batches:
            had.append(x[:, -1].tolist())
            optimizer_.zero_grad()
            loss = clicks.loss_of(model, x[:, :-1], y)
            loss.backward()
            optimizer_.step()
            losses.append(loss.item())
        job.finish()
        sharing = job._wired.sharing
        return had, losses, model.state_dict(), sharing

    return group.run(work)


@pytest.mark.parametrize("allocation", ["laia", "random"])
@pytest.mark.parametrize("samples", [200, 193])
def test_every_sample_of_a_batch_is_trained_by_one_rank_in_equal_parts(allocation, samples):
    with ranks.Group(workers=3, servers=2) as group:
        found = train(group, samples=samples, epochs=2, cache="off", allocation=allocation)
    batches = list(zip(*(had for had, _, _, _ in found), strict=True))
    assert len(batches) == 2 * -(-samples // BATCH)
    for parts in batches:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
        assert sorted(one for parts in epoch for part in parts for one in part) == list(range(samples))
    chain = itertools.chain.from_iterable
    runs = [sorted(chain(parts)) == list(chain(map(sorted, parts))) for parts in batches]
    assert not all(runs[3:]), "they are no runs of the batch"


def test_scheduled_model_equals_contiguous_allocation_up_to_rounding():
    states = []
    for allocation in ("contiguous", "random"):
        with ranks.Group(workers=2) as group:
            found = train(group, cache="off", allocation=allocation)
        states.append(found[0][2])
        for name, value in found[1][2].items():
            assert torch.equal(value, found[0][2][name]), "ranks have the same model"
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)


class Computed(clicks.Clicks):
    """Looks up ids that it computes itself."""

    def forward(self, ids):
        return super().forward((ids * 7 + 1) % clicks.ROWS)


def computed(**options):
    torch.manual_seed(1)
    _, dataset = clicks.make(**options)
    return Computed(), dataset


def test_ids_computed_in_the_model_disable_scheduling_with_a_log_line(caplog):
    with ranks.Group(workers=2) as group:
        found = train(group, model_of=computed, cache="off", allocation="laia")
    assert "trains a contiguous run of each batch: the ids of every table are computed inside the model" in caplog.text
    for had, _, _, sharing in found:
        assert len(had) == 10 and not sharing.allotting.on and not sharing.allotting.wholes


class Admitting(clicks.Clicks):
    """Has another table with row admission on servers, which no cache may keep."""

    def __init__(self):
        super().__init__()
        self.rare = st.EmbeddingBag(1, min_count=2, init="zeros")

    def forward(self, ids):
        return super().forward(ids) + self.rare(ids).squeeze(1)


def admitting(**options):
    _, dataset = clicks.make(**options)
    torch.manual_seed(2)
    return Admitting(), dataset


def test_uncacheable_table_is_trained_alongside_cached_ones():
    states = []
    for cache in ("off", "64M"):
        with ranks.Group(workers=2) as group:
            found = train(group, model_of=admitting, cache=cache, allocation="random")
        assert [len(had) for had, _, _, _ in found] == [10, 10]
        states.append(found[0][2])
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)


class DifferentIdsPerRank(Dataset):
    """Gives every rank other ids for the same samples."""

    def __init__(self, rank):
        self.chance = torch.Generator().manual_seed(rank)

    def __len__(self):
        return 200

    def batch(self, indices):
        ids = torch.randint(0, clicks.ROWS, (len(indices), clicks.FIELDS), generator=self.chance)
        return ids, torch.from_numpy(indices % 2).float()


def test_ranks_that_read_different_samples_are_detected_before_any_loss(caplog):
    models = [clicks.make()[0] for _ in range(3)]

    def work(job):
        model = models[job.rank]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = DifferentIdsPerRank(job.rank)
        model, optimizer, batches = job.prepare(
            model, optimizer, data, batch_size=BATCH, cache="off", allocation="laia"
        )
        losses = clicks.train(model, optimizer, batches)
        job.finish()
        return len(losses)

    with ranks.Group(workers=3) as group:
        assert group.run(work) == [10, 10, 10]
    assert caplog.text.count("ranks have read different samples at the same index") == 3


def test_accumulated_gradients_disable_scheduling_without_changing_the_model(caplog):
    states = []
    for allocation in ("contiguous", "laia"):
        models = [clicks.make() for _ in range(2)]

        def work(job, models=models, allocation=allocation):
            model, dataset = models[job.rank]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer, batches = job.prepare(
                model, optimizer, dataset, batch_size=BATCH, cache="off", allocation=allocation
            )
            for number, (x, y) in enumerate(batches):
                clicks.loss_of(model, x, y).backward()
                if number < 4 or number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            job.finish()
            return model.state_dict()

        with ranks.Group(workers=2) as group:
            states.append(group.run(work)[0])
    assert "gradients are accumulated over several batches" in caplog.text
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)


class Basket(Dataset):
    """Samples with one to three ids, and their own number."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return [(index * 13 + i * i) % 40 for i in range(1 + index % 3)], index


def collate(samples):
    ids = torch.tensor([each for one, _ in samples for each in one])
    ends = torch.tensor([len(one) for one, _ in samples]).cumsum(0)
    return {
        "ids": ids,
        "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]]),
        "number": torch.tensor([number for _, number in samples]),
    }


def test_variable_length_bags_are_scheduled_and_read_by_the_assigned_rank():
    def work(job):
        model = nn.EmbeddingBag(40, 2, mode="sum")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = job.prepare(
            model,
            optimizer,
            Basket(),
            batch_size=BATCH,
            shuffle=False,
            collate_fn=collate,
            cache="off",
            allocation="laia",
        )
        had = []
        for batch in batches:
            had.append(batch["number"].tolist())
            model(batch["ids"], batch["offsets"]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        job.finish()
        return had, job._wired.sharing.allotting

    with ranks.Group(workers=2) as group:
        (first, _), (second, _) = group.run(work)
    for one, other in zip(first, second, strict=True):
        assert len(one) == len(other) == BATCH // 2
    assert sorted(itertools.chain.from_iterable(first + second)) == list(range(200))
    assert any(sorted(one) != list(range(min(one), min(one) + 10)) for one in first[4:])


def test_schedule_ends_on_all_ranks_when_one_sees_the_end_first_without_blaming_data(caplog):
    lookups = SimpleNamespace(fixed=False, settled=True, computed=set, on_device=False)
    pair = []
    for rank in range(2):
        talk = SimpleNamespace(words=[], sums=[])
        allotting = SampleAllocator(
            lookups, [0], lambda place, tables: SimpleNamespace(effort_within=lambda seconds: 1), None
        )
        sharing = CacheCoordinator(talk, allotting, None, save_due=lambda: False)
        sharing.restart(GroupPlace(rank, 2, 1))
        allotting.apply_verdict(
            allreduce.decode_words(allreduce.encode_words(allreduce.RankWords(ready=True), [0]), [0], 1)
        )
        coming = ReadBatch(None, None, plan=AllottedBatch(None, None, 77, 0)) if rank else None
        sharing.hand_out(ReadBatch(None, None, following=lambda coming=coming: coming), 5)
        sharing.set_words()
        pair.append((sharing, talk))
    sums = [a + b for a, b in zip(*(talk.words for _, talk in pair), strict=True)]
    for sharing, talk in pair:
        assert sharing.allotting.on
        talk.sums = sums
        sharing.apply_verdict(5)
        assert not sharing.allotting.on and sharing.allotting.wholes, "it may begin again"
    assert not caplog.records


class Counting:
    """Decides nothing and counts the reported steps."""

    why, wish, trying, steps = "", None, False, 0

    def stepped(self, *, on):
        self.steps += 1


def test_undecided_cache_starts_only_after_a_full_pass_without_mid_pass_reads():
    place, deciding = GroupPlace(0, 1, 0), Counting()
    allotting = SimpleNamespace(place=place, on=False, tables=(0,), restart=lambda place: None)
    sharing = CacheCoordinator(None, allotting, None, save_due=lambda: False, deciding=deciding)

    def step(number):
        sharing.hand_out(ReadBatch(None, None), number)
        sharing.check_read([0])  # its own rows
        sharing.stepped(number)

    step(1)
    sharing.end_pass(place, early=False)
    sharing.check_read([0])  # between passes
    assert deciding.steps == 0
    step(2)
    assert deciding.steps == 1
    sharing.check_read([7])  # a checkpoint's own table, which no worker keeps rows of
    step(3)
    assert deciding.steps == 2
    sharing.check_read([0])
    step(4)
    assert deciding.steps == 2


@pytest.mark.parametrize(
    ("on", "pays", "in_pass", "why", "passing"),
    [
        (True, True, True, "it spares 30%", False),
        (False, False, True, "it spares 30%", False),  # not enough
        (False, True, True, "", False),  # about to begin
        (False, True, False, "no pass is under way", True),
    ],
)
def test_reason_shown_for_no_cache_is_not_that_the_cache_pays(on, pays, in_pass, why, passing):
    allotting = SimpleNamespace(place=GroupPlace(0, 1, 0), on=on, why="" if on else NOT_YET)
    cache, deciding = SimpleNamespace(use=CacheUse), SimpleNamespace(pays=pays, why="it spares 30%")
    sharing = CacheCoordinator(None, allotting, cache, save_due=lambda: False, deciding=deciding, at_once=True)
    if in_pass:
        sharing.hand_out(ReadBatch(None, None), 1)
    assert sharing.use() == CacheUse(on=on, why=why, passing=passing)


def test_requested_cache_reports_temporarily_off_until_it_starts_or_cannot():
    allotting = SimpleNamespace(place=GroupPlace(0, 1, 0), on=False, why=NOT_YET)
    sharing = CacheCoordinator(
        None, allotting, SimpleNamespace(use=CacheUse), save_due=lambda: False, why="asked for: 10%"
    )
    assert sharing.use() == CacheUse(why="no pass is under way", passing=True)
    sharing.hand_out(ReadBatch(None, None), 1)
    assert sharing.use() == CacheUse(why=NOT_YET, passing=True)
    allotting.on, allotting.why = True, ""
    assert sharing.use() == CacheUse(on=True, why="asked for: 10%")
    allotting.on, allotting.why = False, "gradients are accumulated"
    assert sharing.use() == CacheUse(why="gradients are accumulated")
