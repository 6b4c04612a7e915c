"""TorchRec's collections, served: the same values, state dicts and training as TorchRec's own."""

import pytest
import torch
from torch import nn

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


def test_a_bag_collection_gives_the_same_keyed_tensor_and_trains_alike(make_pair):
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


def test_what_is_no_keyed_jagged_tensor_is_refused(make_served):
    served = make_served(nn.ModuleDict({"ebc": bag_collection(), "ec": row_collection()}))
    for collection in served.model.values():
        with pytest.raises(errors.BadInput, match="features are a Tensor; wanted a KeyedJaggedTensor"):
            collection(torch.tensor([[1, 2]]))


def test_a_row_collection_gives_the_same_jagged_tensors_and_trains_alike(make_pair):
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
