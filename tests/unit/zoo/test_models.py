"""Every model of the zoo, in plain PyTorch."""

import pytest
import torch
from torch import nn

import springtide
from springtide import errors, zoo
from springtide.zoo import catalog
from springtide.zoo.layers import HistoryBatch
from springtide.zoo.models import pairwise_dots

NAMES = sorted(catalog.MODELS)


def tables_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)
    with torch.sparse.check_sparse_tensor_invariants():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_model_gives_one_logit_per_sample_and_task(name):
    x, y = zoo.example_batch(name, batch=5, seed=1)
    output = zoo.model(name)(x)
    if name == "mmoe":
        assert output.ctr.shape == output.cvr.shape == (5,)
        assert y.shape == (5, 2)
    else:
        assert output.shape == y.shape == (5,)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_loss_falls_when_a_batch_is_trained_repeatedly(name, sparse):
    model = zoo.model(name, sparse=sparse)
    x, y = zoo.example_batch(name, batch=64, seed=3)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = zoo.loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_exactly_the_looked_up_rows(name):
    model = zoo.model(name)
    x, y = zoo.example_batch(name, batch=32, seed=5)
    seen: dict[str, set[int]] = {}
    for path, table in tables_of(model).items():
        table.register_forward_pre_hook(
            lambda module, args, path=path: seen.setdefault(path, set()).update(args[0].flatten().tolist())
        )
    zoo.loss(model(x), y).backward()
    assert set(seen) == set(tables_of(model))
    for path, table in tables_of(model).items():
        touched = set(table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist())
        assert touched, f"no gradient reached {path}"
        assert touched <= seen[path] - {table.padding_idx}


@pytest.mark.parametrize("name", NAMES)
def test_lookups_are_made_on_views_of_the_batch(name):
    model = zoo.model(name)
    x, _ = zoo.example_batch(name, batch=8, seed=2)
    storages = {leaf.untyped_storage().data_ptr() for leaf in x}
    calls: dict[str, int] = {}

    def check(path, ids):
        calls[path] = calls.get(path, 0) + 1
        assert ids.untyped_storage().data_ptr() in storages, f"{path} looks up ids that are not the batch's"

    for path, table in tables_of(model).items():
        table.register_forward_pre_hook(lambda module, args, path=path: check(path, args[0]))
    model(x)
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("name", NAMES)
def test_sparse_and_dense_gradients_are_equal(name):
    x, y = zoo.example_batch(name, batch=16, seed=4)
    dense, sparse = zoo.model(name, sparse=False), zoo.model(name, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for model in (dense, sparse):
        zoo.loss(model(x), y).backward()
    for (path, a), b in zip(dense.named_parameters(), sparse.parameters(), strict=True):
        grad = b.grad.to_dense() if b.grad.is_sparse else b.grad
        torch.testing.assert_close(a.grad, grad, msg=path)


def test_every_table_of_a_sparse_model_has_sparse_gradients():
    for name in NAMES:
        assert all(table.sparse for table in tables_of(zoo.model(name, sparse=True)).values())


def test_ranker_has_the_documented_layers():
    model = zoo.model("mmoe")
    dims = [table.embedding_dim for table in tables_of(model).values()]
    assert dims == [64] * 2 + [8] * 18 + [64] * 2 + [8] * 12 + [8] * 3
    assert len(model.experts) == 4
    widths = [layer.out_features for layer in model.towers["cvr"] if isinstance(layer, nn.Linear)]
    assert widths == [512, 256, 256, 64, 64, 1]
    assert any(isinstance(layer, nn.SiLU) for layer in model.towers["ctr"])


def test_conversions_count_only_after_a_click():
    x, y = zoo.example_batch("mmoe", batch=16, seed=1)
    output = zoo.model("mmoe")(x)
    changed = output._replace(cvr=torch.where(y[:, 0] > 0, output.cvr, output.cvr + 3))
    torch.testing.assert_close(zoo.loss(output, y), zoo.loss(changed, y))


def test_padding_does_not_change_the_din_output():
    model = zoo.model("din")
    x, _ = zoo.example_batch("din", batch=6, seed=9)
    wider = HistoryBatch(x.user, *(torch.nn.functional.pad(ids, (0, 4)) for ids in (x.items, x.categories)))
    torch.testing.assert_close(model(x), model(wider))


def test_factorization_machine_is_the_sum_of_all_pairs():
    vectors = torch.randn(3, 5, 4)
    pairs = sum((vectors[:, i] * vectors[:, j]).sum(1) for i in range(5) for j in range(i))
    torch.testing.assert_close(pairwise_dots(vectors), pairs)


def test_dlrm_multiplies_each_pair_once():
    model = zoo.model("dlrm", tables=[10, 10], dim=4)
    assert model.above_diagonal.tolist() == [1, 2, 5]


def test_parallel_dcn_v2_with_full_matrices_trains():
    x, y = zoo.example_batch("dcnv2", batch=8)
    model = zoo.model("dcnv2", structure="parallel", rank=None)
    zoo.loss(model(x), y).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_examples_are_seeded():
    for name in NAMES:
        a, b, c = (zoo.example_batch(name, batch=8, seed=seed) for seed in (1, 1, 2))
        assert all(torch.equal(p, q) for p, q in zip(a.x, b.x, strict=True))
        assert not all(torch.equal(p, q) for p, q in zip(a.x, c.x, strict=True))


def test_misspelt_model_gets_a_hint():
    with pytest.raises(errors.UnknownName, match="Did you mean 'widedeep'"):
        zoo.model("wide-and-deep")
    assert type(zoo.model("Wide-Deep")).__name__ == "WideDeep"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zoo.model("ncf", tables=[1, 2, 3]), "two tables"),
        (lambda: zoo.model("din", tables=[1, 2]), "three tables"),
        (lambda: zoo.model("mmoe", tables=[5] * 26), "37 features but there are 26 tables"),
        (lambda: zoo.model("dlrm", tables=[10, 0]), "at least 1"),
        (lambda: zoo.model("dcnv2", structure="stack"), "Did you mean 'stacked'"),
        (lambda: zoo.model("dlrm", tables=[10] * 3)(zoo.example_batch("dlrm").x), "26 columns but the model has 3"),
        (lambda: zoo.loss(zoo.model("mmoe")(zoo.example_batch("mmoe").x), torch.zeros(64)), r"labels \[B, 2\]"),
    ],
)
def test_incompatible_model_settings_are_refused(call, message):
    with pytest.raises(errors.BadInput, match=message):
        call()


@pytest.mark.parametrize("name", NAMES)
def test_open_ended_models_have_tables_without_a_row_count(name):
    model = zoo.model(name, open_ended=True)
    assert not tables_of(model)
    bounded = tables_of(zoo.model(name))
    open_tables = [m for m in model.modules() if isinstance(m, springtide.EmbeddingBag | springtide.Embedding)]
    assert [table.weight.shape[1] for table in open_tables] == [table.embedding_dim for table in bounded.values()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dropout": 1.5}, "dropout is 1.5; expected a share"),
        ({"tables": []}, "tables is empty"),
        ({"tables": 100}, "tables is 100; expected a list"),
        ({"tables": [10, 0, 3]}, "tables has 0; expected integers of at least 1"),
        ({"tables": ["10", 7, 3]}, "tables has '10'; expected integers"),
    ],
)
def test_impossible_sizes_are_refused_by_name(name, given, said):
    with pytest.raises(errors.BadInput, match=said):
        catalog.MODELS[name].build(**{"tables": [10, 7, 3], **given})


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("widedeep", {"dim": 0}, "WideDeep: dim is 0; expected an integer of at least 1"),
        ("deepfm", {"dense": -1}, "DeepFM: dense is -1"),
        ("xdeepfm", {"maps": []}, "XDeepFM: maps is empty"),
        ("dcn", {"hidden": ()}, "DCN: hidden is empty"),
        ("dcn", {"hidden": 64}, r"DCN: hidden is 64; expected a list of integers, as in \[64\]"),
        ("dcnv2", {"rank": 0}, "DCNv2: rank is 0"),
        ("dlrm", {"top": (64, 2.5)}, "DLRM: top has 2.5"),
        ("mmoe", {"groups": ((64, 0),)}, "MMoE: groups has 0"),
        ("mmoe", {"groups": (64, 2)}, r"MMoE: groups are \(64, 2\); expected \(width, features\) of each"),
    ],
)
def test_invalid_size_is_refused_with_the_name_of_its_model(name, given, said):
    with pytest.raises(errors.BadInput, match=said):
        catalog.MODELS[name].build(tables=[10, 7, 3], **given)
