"""What a script gets from its job's spec: datasets by name, and table options."""

import json

import pytest
import torch

import springtide as st
from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, TableWish
from tests.unit.worker import clicks


def settings_of_spec(**spec):
    return schema.settings_of(ElasticJob(script="train.py", **spec))


def test_spec_datasets_are_found_by_name():
    job = st.join(**settings_of_spec(data={"train": "s3://clicks/2026", "test": "/mnt/test"}))
    assert job.data["train"] == "s3://clicks/2026" and dict(job.data) == {
        "train": "s3://clicks/2026",
        "test": "/mnt/test",
    }
    with pytest.raises(errors.BadInput, match="Did you mean 'train'"):
        job.data["trian"]
    assert st.join().data.get("train", "local.csv") == "local.csv"
    with pytest.raises(errors.BadInput, match=r"the job was given no data; write `data: \{train: PATH_OR_URL\}`"):
        st.join().data["train"]


def test_table_options_in_the_spec_override_the_script():
    model, dataset = clicks.make(sparse=False)
    names = [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.EmbeddingBag | torch.nn.Embedding)
    ]
    wish = TableWish(ttl=7, min_count=2, capacity_rows=50, dtype="bfloat16")
    job = st.join(**settings_of_spec(tables={names[0]: wish}))
    model, _, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset)
    (table,) = model.get_submodule(names[0]).springtide_binding.tables
    assert (table.spec.ttl, table.spec.min_count, table.spec.capacity_rows, table.spec.dtype) == (7, 2, 50, "bfloat16")


def test_spec_table_missing_in_the_model_is_refused_with_known_names():
    model, dataset = clicks.make(sparse=False)
    job = st.join(**settings_of_spec(tables={"usr": TableWish(ttl=1)}))
    with pytest.raises(errors.UnknownName, match="the job's spec names it"):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset)


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"user": {"tll": 1}})])
def test_invalid_table_options_are_refused(text):
    with pytest.raises(errors.BadInput):
        schema.tables_of(text)
