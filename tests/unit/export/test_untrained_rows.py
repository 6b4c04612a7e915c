"""An export answers keys that were never trained as the servers do."""

import numpy as np
import pytest
import torch

from springtide import _native, errors
from springtide.domain.model.tables import DTYPES, INIT_KINDS, Init, TableSpec
from springtide.embedding.lookup.table_client import native_spec
from springtide.export.untrained_rows import UntrainedRows, rounded

SEED = 2**64 - 3
RANGES = {"zeros": (0.0, 0.0), "uniform": (-0.5, 0.25), "normal": (0.1, 2.0), "xavier": (1.0, 1000.0)}


@pytest.mark.parametrize("kind", INIT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 7, 16])
def test_rows_are_those_that_a_server_answers(kind, dtype, dim, rng):
    init = Init(kind=kind, a=RANGES[kind][0], b=RANGES[kind][1])
    spec = TableSpec(id=3, name="items", dim=dim, dtype=dtype, init=init)
    store = _native.Store(slots=64, seed=SEED)
    store.declare(native_spec(spec))
    keys = np.concatenate([[0, 1, -1], rng.integers(-(2**63), 2**63 - 1, 300)])
    answered = np.empty((len(keys), dim), dtype=np.float32)
    store.pull(np.full(len(keys), 3, dtype=np.uint16), keys, answered.reshape(-1))

    made = UntrainedRows(table=3, seed=SEED, init=init).rows(keys, dim=dim, dtype=dtype)
    if kind == "normal":  # log, cos and sin of NumPy and of the C library may differ in the last bit
        np.testing.assert_allclose(made, answered, rtol=1e-2 if dtype != "float32" else 1e-6, atol=1e-6)
        assert (made == answered).mean() > 0.99
    else:
        np.testing.assert_array_equal(made, answered)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_are_rounded_like_torch_rounds_them(dtype, rng):
    rows = rng.standard_normal((500, 8)).astype(np.float32)
    wanted = torch.from_numpy(rows).to(getattr(torch, dtype)).float().numpy()

    np.testing.assert_array_equal(rounded(rows, dtype), wanted)


def test_no_keys_give_no_rows():
    made = UntrainedRows(table=0, seed=1, init=Init(kind="normal", b=1.0))

    assert made.rows(np.empty(0, dtype=np.int64), dim=5, dtype="float32").shape == (0, 5)


def test_unknown_init_on_a_card_is_refused():
    with pytest.raises(errors.UnknownName, match="init"):
        Init(kind="ones")
