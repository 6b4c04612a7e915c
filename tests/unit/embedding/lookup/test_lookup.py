"""Grouped lookups: prefetching, and gradients equal to plain PyTorch."""

import copy

import pytest
import torch
from torch import nn

import springtide
from springtide.domain.data.samples import Batch
from springtide.embedding.lookup.lookup import Crossed


class TwoTowers(nn.Module):
    """Columns of one tensor, a bag with offsets, an embedding of a slice; a table used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.EmbeddingBag(40, 4, mode="sum")
        self.item = nn.Embedding(30, 4)
        self.tags = nn.EmbeddingBag(20, 8, mode="mean")
        self.top = nn.Linear(16, 1)

    def forward(self, x):
        user = self.user(x["ids"][:, 0:1])
        seen = self.item(x["ids"][:, 1])
        next_one = self.item(x["ids"][:, 2])
        tags = self.tags(x["tags"], x["offsets"])
        return self.top(torch.cat([user, seen * next_one, tags], 1))


def batch(seed, size=6):
    torch.manual_seed(seed)
    ids = torch.stack([torch.randint(0, rows, (size,)) for rows in (40, 30, 30)], 1)
    sizes = torch.randint(0, 4, (size,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)[:-1]])
    return Batch(
        {"ids": ids, "tags": torch.randint(0, 20, (int(sizes.sum()),)), "offsets": offsets}, torch.rand(size, 1)
    )


def loss_of(model, given):
    return nn.functional.mse_loss(model(given.x), given.y)


def test_second_batch_is_prefetched_whole_and_trains_the_same(make_pair):
    torch.manual_seed(0)
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    for seed in range(6):
        given = batch(seed)
        lookups.begin(lookups.prefetch(given))
        ours, theirs = pair.train(lambda model, given=given: loss_of(model, given))
        torch.testing.assert_close(ours, theirs)
    assert (lookups.misses, lookups.hits) == (4, 20)
    pair.assert_same()


def test_one_gather_serves_all_modules_of_a_prefetched_batch(make_served):
    served = make_served(TwoTowers())
    for seed in range(2):
        given = batch(seed)
        served.lookups.begin(served.lookups.prefetch(given))
        loss_of(served.model, given).backward()
        assert served.step() == (3 if seed == 0 else 1)


def test_ids_changed_in_place_are_looked_up_again(make_pair):
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    lookups.learn(batch(0))
    loss_of(pair.served.model, batch(0))
    given = batch(1)
    for _ in range(2):
        lookups.begin(lookups.prefetch(given))
        given.x["ids"][:, 1] = 5
        torch.testing.assert_close(pair.served.model(given.x), pair.plain(given.x))


def test_computed_ids_are_pulled_once_known(make_pair):
    class Hashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(10, 4, mode="sum")

        def forward(self, x):
            return self.table(x * 7 % 10)

    pair = make_pair(Hashed())
    lookups = pair.served.lookups
    for seed in range(6):
        given = torch.randint(0, 1000, (5, 2), generator=torch.Generator().manual_seed(seed))
        lookups.begin(lookups.prefetch(given))
        pair.train(lambda model, given=given: model(given).pow(2).sum())
    assert (lookups.hits, lookups.misses) == (0, 6)
    pair.assert_same()


def test_batch_other_than_the_prefetched_one_is_looked_up_directly(make_pair):
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    for seed in range(4):
        lookups.begin(lookups.prefetch(batch(seed)))
        other = batch(100 + seed, size=3)
        ours, theirs = pair.train(lambda model, other=other: loss_of(model, other))
        torch.testing.assert_close(ours, theirs)
    assert lookups.hits == 0
    pair.assert_same()


def test_uncalled_module_pushes_nothing(make_served):
    served = make_served(nn.ModuleList([nn.EmbeddingBag(10, 4, mode="sum"), nn.EmbeddingBag(10, 4, mode="sum")]))
    one, two = served.model
    before = served.model.state_dict()["1.weight"]
    for use_second in (True, False):
        ids = torch.tensor([[1, 2], [3, 4]])
        served.lookups.begin(served.lookups.prefetch(ids))
        out = one(ids[:, :1]).sum() + (two(ids[:, 1:]).sum() * 0 if use_second else 0)
        out.backward()
        parts = served.lookups.pending_parts()
        assert (
            sum(part.touched(group) for part in parts for group in range(len(part.group_begin) - 1)) == 1 + use_second
        )
        served.step()
    assert torch.equal(served.model.state_dict()["1.weight"], before)


@pytest.mark.parametrize("prefetch", [False, True])
def test_accumulated_gradients_are_exact_and_clip_the_same(make_pair, prefetch):
    torch.manual_seed(1)
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    for round_ in range(4):
        pair.served.optimizer.zero_grad()
        pair.plain_optimizer.zero_grad()
        for part in range(3):
            given = batch(10 * round_ + part)
            if prefetch:
                lookups.begin(lookups.prefetch(given))
            loss_of(pair.served.model, given).backward()
            loss_of(pair.plain, given).backward()
        norms = [nn.utils.clip_grad_norm_(model.parameters(), 0.05) for model in (pair.served.model, pair.plain)]
        torch.testing.assert_close(norms[0], norms[1])
        pair.served.step()
        pair.plain_optimizer.step()
        pair.assert_same()


def test_zeroed_gradients_are_not_pushed(make_pair):
    pair = make_pair(TwoTowers())
    for seed in range(3):
        for model in (pair.served.model, pair.plain):
            loss_of(model, batch(seed + 50)).backward()
            model.zero_grad()
            loss_of(model, batch(seed)).backward()
        pair.served.step()
        pair.plain_optimizer.step()
        pair.plain.zero_grad()
        pair.served.model.zero_grad()
    pair.assert_same()


def test_replaced_gradient_is_the_one_pushed(make_pair):
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum")))
    ids = torch.tensor([[1, 2], [2, 3]])
    for model in (pair.served.model, pair.plain):
        model(ids).sum().backward()
        model[0].weight.grad = model[0].weight.grad * 0.25
    pair.served.step()
    pair.plain_optimizer.step()
    pair.assert_same()


def test_backward_runs_twice_through_one_forward(make_pair):
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum")))
    for model in (pair.served.model, pair.plain):
        out = model(torch.tensor([[1, 2], [2, 3]])).pow(2).sum()
        out.backward(retain_graph=True)
        out.backward()
    pair.served.step()
    pair.plain_optimizer.step()
    pair.assert_same()


def test_evaluation_trains_nothing_and_needs_no_prefetch(make_pair):
    pair = make_pair(TwoTowers())
    pair.served.model.eval()
    given = batch(3)
    with torch.no_grad():
        out = pair.served.model(given.x)
        torch.testing.assert_close(out, pair.plain(given.x))
    assert not out.requires_grad and pair.served.step() == 0
    with torch.inference_mode():
        torch.testing.assert_close(pair.served.model(given.x), pair.plain(given.x))


def test_prefetched_batch_may_be_evaluated_before_training(make_pair):
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    for seed in range(3):
        given = batch(seed)
        lookups.begin(lookups.prefetch(given))
        with torch.no_grad():
            torch.testing.assert_close(pair.served.model(given.x), pair.plain(given.x))
        pair.train(lambda model, given=given: loss_of(model, given))
    pair.assert_same()


def test_second_forward_after_the_step_sees_the_new_weights(make_pair):
    pair = make_pair(TwoTowers())
    lookups = pair.served.lookups
    for seed in range(3):
        given = batch(seed)
        lookups.begin(lookups.prefetch(given))
        pair.train(lambda model, given=given: loss_of(model, given))
        torch.testing.assert_close(pair.served.model(given.x), pair.plain(given.x))


def test_frozen_table_is_read_and_unchanged(make_pair):
    model = TwoTowers()
    model.user.weight.requires_grad_(False)
    pair = make_pair(model)
    for seed in range(4):
        given = batch(seed)
        pair.served.lookups.begin(pair.served.lookups.prefetch(given))
        pair.train(lambda model, given=given: loss_of(model, given))
    pair.assert_same()


def test_outputs_may_be_changed_in_place(make_pair):
    pair = make_pair(nn.ModuleList([nn.EmbeddingBag(10, 4, mode="sum"), nn.EmbeddingBag(10, 4, mode="sum")]))
    lookups = pair.served.lookups
    for seed in range(3):
        ids = torch.randint(0, 10, (4, 2), generator=torch.Generator().manual_seed(seed))
        lookups.begin(lookups.prefetch(ids))

        def loss(model, ids=ids):
            again = model[0](ids[:, :1])
            first = model[0](ids[:, :1]).relu_()
            return (first + again + model[1](ids[:, 1:]).mul_(2)).pow(2).sum()

        ours, theirs = pair.train(loss)
        torch.testing.assert_close(ours, theirs)
    pair.assert_same()


def test_mixed_precision_gives_float32_rows_and_scaled_gradients(make_pair):
    pair = make_pair(TwoTowers())
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    for seed in range(3):
        given = batch(seed)
        for model, optimizer, scaler in zip(
            (pair.served.model, pair.plain), (pair.served.optimizer, pair.plain_optimizer), scalers, strict=True
        ):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert model.user(given.x["ids"][:, 0:1]).dtype == torch.float32
                value = loss_of(model, given)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        pair.served.step()
        pair.plain_optimizer.step()
        for scaler in scalers:
            scaler.update(1024.0)
    pair.assert_same(1e-4)


def test_infinite_gradients_are_seen_by_the_scaler_and_not_pushed(make_served):
    served = make_served(nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum")))
    before = copy.deepcopy(served.model.state_dict()["0.weight"])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale((served.model(torch.tensor([[1, 2]])) * 1e38).sum() * 1e5).backward()
    scaler.unscale_(served.optimizer)
    assert not torch.isfinite(served.model[0].weight.grad).all()
    scaler.step(served.optimizer)
    served.optimizer.zero_grad()
    assert served.step() == 0
    assert torch.equal(served.model.state_dict()["0.weight"], before)


def test_open_ended_collections_are_prefetched(make_served):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = springtide.EmbeddingBags({"a": 4, "b": 8})

        def forward(self, x):
            return self.tables(x)

    served = make_served(Wide())
    for seed in range(4):
        x = torch.randint(-(2**62), 2**62, (8, 2), generator=torch.Generator().manual_seed(seed))
        served.lookups.begin(served.lookups.prefetch((x, None)))
        assert served.model(x).shape == (8, 12)
        served.model(x).sum().backward()
        served.step()
    assert served.lookups.misses == 2


class Hashed(nn.Module):
    """Looks up ids that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(30, 4, mode="sum")

    def rest(self, ids):
        return self.item(ids).sum()


def test_crossing_ids_are_prefetched_despite_batches_without_them(make_pair):
    pair = make_pair(Hashed())
    lookups = pair.served.lookups
    crossed = 0
    for seed in range(16):
        raw = torch.randint(0, 1000, (6, 2), generator=torch.Generator().manual_seed(seed))
        ids = raw * 7 % 30
        came = seed >= 4 and seed % 3 != 0
        lookups.begin(lookups.prefetch(Crossed((raw, None), (2, ids)) if came else (raw, None)))
        pair.train(lambda model, ids=ids: model.rest(ids))
        crossed += came
    assert lookups.hits == crossed - 1  # all but the first, from which it was learnt
    pair.assert_same()
