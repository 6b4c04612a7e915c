"""Served TorchRec collections: the same values, state dicts and training as TorchRec's own."""

import contextlib
import pathlib
import tomllib

import pytest
import torch
from packaging.requirements import Requirement
from torch import nn

import springtide as st
from springtide import errors

# what TorchRec and FBGEMM warn about on import is theirs
pytestmark = [pytest.mark.extra("torchrec"), pytest.mark.filterwarnings("ignore")]


def batch(seed, size=4):
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    torch.manual_seed(seed)
    lengths = torch.randint(0, 4, (3 * size,))
    values = torch.randint(0, 9, (int(lengths.sum()),))
    return KeyedJaggedTensor(keys=["f1", "f2", "f3"], values=values, lengths=lengths)


def bag_collection():
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name="t1", embedding_dim=4, num_embeddings=9, feature_names=["f1", "f3"]),
            EmbeddingBagConfig(
                name="t2", embedding_dim=8, num_embeddings=9, feature_names=["f2"], pooling=PoolingType.MEAN
            ),
        ]
    )


def row_collection():
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    return EmbeddingCollection(
        tables=[
            EmbeddingConfig(name="t1", embedding_dim=4, num_embeddings=9, feature_names=["f1", "f3"]),
            EmbeddingConfig(name="t2", embedding_dim=4, num_embeddings=9, feature_names=["f2"]),
        ]
    )


def test_torchrec_bag_collection_gives_the_same_keyed_tensor_and_training(make_pair):
    pair = make_pair(nn.ModuleDict({"ebc": bag_collection()}))
    assert [table.name for table in pair.served.tables] == ["ebc.embedding_bags.t1", "ebc.embedding_bags.t2"]
    lookups = pair.served.lookups
    for seed in range(4):
        given = batch(seed)
        lookups.begin(lookups.prefetch(given))
        ours, theirs = pair.served.model["ebc"](given), pair.plain["ebc"](given)
        assert ours.keys() == theirs.keys() and ours.length_per_key() == theirs.length_per_key()
        torch.testing.assert_close(ours.values(), theirs.values())
        pair.train(lambda model, given=given: model["ebc"](given).values().pow(2).sum())
    assert lookups.misses == 2
    pair.assert_same()


def test_input_other_than_a_keyed_jagged_tensor_is_refused(make_served):
    served = make_served(nn.ModuleDict({"ebc": bag_collection(), "ec": row_collection()}))
    for collection in served.model.values():
        with pytest.raises(errors.BadInput, match="features are a Tensor; expected a KeyedJaggedTensor"):
            collection(torch.tensor([[1, 2]]))


def test_torchrec_row_collection_gives_the_same_jagged_tensors_and_training(make_pair):
    pair = make_pair(nn.ModuleDict({"ec": row_collection()}))
    for seed in range(4):
        given = batch(seed)
        ours, theirs = pair.served.model["ec"](given), pair.plain["ec"](given)
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(ours[name].values(), theirs[name].values())
            assert torch.equal(ours[name].lengths(), theirs[name].lengths())
        pair.train(lambda model, given=given: sum(part.values().sin().sum() for part in model["ec"](given).values()))
    pair.assert_same()


def on_meta(kind, device):
    from torchrec.modules import embedding_configs, embedding_modules

    collection = embedding_modules.EmbeddingBagCollection if kind == "bags" else embedding_modules.EmbeddingCollection
    config = embedding_configs.EmbeddingBagConfig if kind == "bags" else embedding_configs.EmbeddingConfig
    more = {"t1": {}, "t2": {"weight_init_min": 2.0, "weight_init_max": 3.0}, "t3": {"init_fn": nn.init.ones_}}
    return collection(
        device=device,
        tables=[
            config(name=name, embedding_dim=4, num_embeddings=100, feature_names=[f"f{name[1]}"], **given)
            for name, given in more.items()
        ],
    )


@pytest.mark.parametrize("kind", ["bags", "rows"])
@pytest.mark.parametrize("how", ["meta device", "serving"])
def test_collection_that_no_process_holds_is_initialized_like_torchrec(make_served, kind, how):
    with st.serving() if how == "serving" else contextlib.nullcontext():
        it = on_meta(kind, None if how == "serving" else torch.device("meta"))
    model = nn.ModuleDict({"it": it, "top": nn.Linear(4, 1)})
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    before = [id(one) for one in model.parameters()]
    served = make_served(model, lambda _: optimizer)
    assert [id(one) for one in served.model.parameters()] == before, "the optimizer's own parameters"
    assert not any(one.is_meta for one in served.model.parameters()) and served.model["it"].device.type == "cpu"
    first, second, third = (rows for name, rows in served.model.state_dict().items() if name.startswith("it."))
    assert 0.08 < first.max() <= 0.1 and -0.1 <= first.min() < -0.08 and abs(first.mean()) < 0.02
    assert 2.0 <= second.min() < 2.1 and 2.9 < second.max() <= 3.0
    assert torch.equal(third, torch.ones(100, 4))
    given = served.model["it"](batch(1))
    rows = given.values() if kind == "bags" else torch.cat([one.values() for one in given.values()])
    rows.sum().backward()
    assert served.step() and not torch.equal(next(iter(served.model.state_dict().values())), first)


def test_changed_lengths_or_weights_invalidate_a_prefetch(make_served):
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    served = make_served(nn.ModuleDict({"ebc": bag_collection()}))
    lookups, ebc = served.lookups, served.model["ebc"]
    for seed in range(3):
        given = batch(seed)
        lookups.begin(lookups.prefetch(given))
        ebc(given)
        flipped = KeyedJaggedTensor(keys=given.keys(), values=given.values(), lengths=given.lengths().flip(0))
        with torch.no_grad():
            ours = ebc(flipped).values()
            lookups.learn(None)
            torch.testing.assert_close(ours, ebc(flipped).values())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_torchrec_extra_requires_only_available_wheels(machine):
    project = tomllib.loads((pathlib.Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    asked = [Requirement(one) for one in project["optional-dependencies"]["torchrec"]]
    names = {one.name for one in asked if one.marker is None or one.marker.evaluate({"platform_machine": machine})}
    assert ("torchrec" in names) == (machine == "x86_64"), "it requires fbgemm-gpu, of which ARM has none"
    assert ("fbgemm-gpu-cpu" in names) == (machine == "aarch64")
