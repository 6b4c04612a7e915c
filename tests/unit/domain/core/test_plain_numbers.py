"""NumPy and torch numbers are accepted wherever users give a number."""

import dataclasses
import typing

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st
from springtide import errors, zoo
from springtide.checkpoint import Checkpointer
from springtide.data import ElasticLoader
from springtide.data.stream.decode import Fixed
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.domain.core.validation import plain, takes_numbers
from springtide.domain.spec import elastic_job, schema
from springtide.domain.spec.job_spec import JobSpec
from springtide.zoo.clicklog.population import LogSpec
from tests.unit.worker.ranks import Group

WHOLE = {"numpy": np.int64, "numpy small": np.int16, "array": np.array, "torch": torch.tensor}
REAL = {"numpy": np.float64, "numpy small": np.float32, "array": np.array, "torch": torch.tensor}
whole = pytest.mark.parametrize("number", WHOLE.values(), ids=WHOLE)
real = pytest.mark.parametrize("number", REAL.values(), ids=REAL)
both = pytest.mark.parametrize(("number", "fraction"), list(zip(WHOLE.values(), REAL.values(), strict=True)), ids=WHOLE)

DATA = TensorDataset(torch.arange(64) % 20, torch.rand(64))


class Net(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables, self.top = nn.ModuleList(tables), nn.Linear(4 * len(tables), 1)

    def forward(self, ids):
        return self.top(torch.cat([table(ids.unsqueeze(1)).flatten(1) for table in self.tables], 1)).squeeze(1)


def train(tables, optimizer=torch.optim.SGD, join=None, data=DATA, clip=None, **prepare):
    """A whole loop, alone; the model's state."""
    torch.manual_seed(1)
    job = st.join(**join or {})
    model = Net(tables)
    model, optimizer, batches = job.prepare(model, optimizer(model.parameters(), lr=0.1), data, **prepare)
    for ids, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(ids), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        job.report(loss=loss, rate=np.float32(0.5))
    return model.state_dict()


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@whole
def test_table_sizes_accept_numpy_and_torch_numbers(number):
    def made(number):
        torch.manual_seed(2)
        return [
            nn.EmbeddingBag(number(20), number(4), mode="sum"),
            nn.Embedding(number(20), number(4), padding_idx=int(number(0))),
            st.EmbeddingBag(number(4), init="zeros", padding_idx=number(3), min_count=number(0), ttl=number(0)),
            st.Embedding(number(4), init="zeros", capacity=number(0)),
        ]

    tables = made(number)
    same(train(tables, batch_size=16), train(made(int), batch_size=16))
    assert type(tables[0].num_embeddings) is type(tables[0].embedding_dim) is int
    bags = st.EmbeddingBags({"a": number(4), "b": number(2)})
    assert bags.lengths == (4, 2) and {type(one) for one in bags.lengths} == {int}
    assert [request.dim for _, request in st.EmbeddingBags([number(4)]).requests("")] == [4]


@real
def test_table_rates_and_first_values_accept_numpy_and_torch_numbers(number):
    def made(number):
        return [st.EmbeddingBag(4, lr=number(0.5), init=("uniform", number(-0.25), number(0.75)))]

    same(train(made(number), batch_size=16), train(made(float), batch_size=16))


@both
def test_prepare_options_accept_numpy_and_torch_numbers(number, fraction):
    def trained(number, fraction):
        torch.manual_seed(2)
        return train(
            [nn.EmbeddingBag(20, 4)],
            batch_size=number(8),
            accumulate=number(1),
            epochs=number(2),
            seed=number(3),
            num_workers=number(0),
            clip=fraction(0.5),
        )

    same(trained(number, fraction), trained(int, float))


@real
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p, number, lr: torch.optim.SGD(p, lr=number(lr), momentum=number(0.5), weight_decay=number(0.25)),
        lambda p, number, lr: torch.optim.Adagrad(p, lr=number(lr), lr_decay=number(0.125), eps=number(0.5)),
    ],
)
def test_optimizer_rates_accept_numpy_and_torch_numbers(number, optimizer):
    given = float if number in (np.array, torch.tensor) else number  # torch itself takes no arrays there

    def trained(number):
        torch.manual_seed(2)
        return train([nn.EmbeddingBag(20, 4)], lambda p, lr: optimizer(p, number, 0.125), batch_size=16)

    same(trained(given), trained(float))


@both
def test_join_settings_accept_numpy_and_torch_numbers(number, fraction):
    job = st.join(seed=number(5), slots=number(128), report_every_s=fraction(0.25), whole_table_bytes=number(100))
    settings = job._settings
    assert (settings.seed, settings.slots, settings.report_every_s, settings.whole_table_bytes) == (5, 128, 0.25, 100)
    assert [type(getattr(settings, name)) for name in ("seed", "slots", "report_every_s")] == [int, int, float]


@both
def test_registered_states_accept_numpy_and_torch_numbers(number, fraction):
    class Kept:
        state = {"steps": number(3), "rate": fraction(0.5)}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    assert st.join().register(Kept()).state_dict()["steps"] == 3


@both
def test_elastic_loader_options_accept_numpy_and_torch_numbers(number, fraction):
    given = dict(batch_size=number(4), num_workers=number(0), timeout=fraction(0.0), prefetch_factor=number(2))
    with ElasticLoader(DATA, **given, seed=number(3), rank=number(0), world=number(1)) as loader:
        loader.set_epoch(number(2))
        assert len(loader) == 16 and len(list(loader)) == 16 and type(loader.batch_size) is int
        msgspec.json.encode(loader.state_dict())
        loader.resize(number(0))


@whole
def test_checkpointer_steps_accept_numpy_and_torch_numbers(number, tmp_path):
    saver = Checkpointer(tmp_path / "saves", keep=number(2), memory=tmp_path)
    with saver:
        saver.save(number(7), {"it": torch.ones(3)}).wait()
        assert saver.load(number(7)).step == 7 and [type(one.step) for one in saver.saved()] == [int]


@both
def test_stream_options_accept_numpy_and_torch_numbers(number, fraction, tmp_path):
    given = st.stream(
        f"log://{tmp_path}",
        decode=Fixed({"ids": ("i8", number(2))}),
        start=fraction(2.5),
        linger_s=fraction(0.5),
        max_record_bytes=number(64),
        max_lateness_s=fraction(1.5),
        queue=(number(2), number(8)),
    )
    assert given.card.start == "2.5" and given.queue == (2, 8) and type(given.max_record_bytes) is int
    settings = LogSettings(partitions=number(2), segment_bytes=number(4096), retain_s=fraction(60.0))
    assert create(tmp_path / "log", settings).partitions() == 2


def numeric(kind):
    """Names of fields of a dataclass that take a number, and a number that each takes."""
    for field in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind)[field.name]
        wanted = [one for one in (int, float) if one is hint or one in typing.get_args(hint)]
        if wanted and not isinstance(field.default, tuple):
            yield field.name, wanted[0], field.default


KINDS = [
    elastic_job.RoleWish,
    elastic_job.Quota,
    elastic_job.TableWish,
    elastic_job.CheckpointWish,
    elastic_job.FollowingWish,
    elastic_job.PatienceWish,
    elastic_job.ElasticJob,
    elastic_job.KubernetesWish,
    elastic_job.RayWish,
    JobSpec,
    LogSpec,
]
FIELDS = [(kind, *found) for kind in KINDS for found in numeric(kind)]


@pytest.mark.parametrize(
    ("kind", "name", "wanted", "default"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name, *_ in FIELDS]
)
def test_every_spec_number_accepts_numpy_and_torch_numbers(kind, name, wanted, default):
    needed = {"script": "train.py"} if kind is elastic_job.ElasticJob else {"name": "it"} if kind is JobSpec else {}
    value = default if isinstance(default, int | float) and not isinstance(default, bool) else wanted(1)
    for given in (np.float64(value), np.float32(value)) if wanted is float else (np.int64(value), torch.tensor(value)):
        made = kind(**needed, **{name: given})
        assert type(getattr(made, name)) is wanted and getattr(made, name) == pytest.approx(value)


def test_spec_with_numpy_numbers_can_be_written():
    job = elastic_job.ElasticJob(
        script="train.py",
        workers=elastic_job.RoleWish(count=np.int64(4), cpu=np.float32(0.5)),
        seed=np.int64(3),
        stragglers={"window": np.float64(20.0)},
        patience=elastic_job.PatienceWish(tries=np.int32(2)),
    )
    assert schema.from_plain(msgspec.json.decode(msgspec.json.encode(schema.to_plain(job)))) == job


@whole
def test_zoo_sizes_accept_numpy_and_torch_numbers(number):
    data = zoo.ClickLog(number(50), spec=LogSpec(seed=number(1)))
    assert type(len(data)) is int and data.batch(np.arange(3))[0].dense.shape[0] == 3
    model = zoo.model("widedeep", tables=[number(one) for one in data.tables], dim=number(4))
    assert model(zoo.example_batch("widedeep", batch=number(3), seed=number(2), tables=data.tables).x).shape[0] == 3


@pytest.mark.parametrize("wrong", [np.float64(1.5), np.bool_(True), torch.tensor([1, 2]), np.array([3])])
def test_non_number_is_refused(wrong):
    with pytest.raises(errors.BadInput, match="batch_size="):
        train([nn.EmbeddingBag(20, 4)], batch_size=wrong)


def test_only_scalars_are_converted():
    model, rows = nn.Linear(1, 1), torch.zeros(3)
    assert plain(model) is model and plain(rows) is rows and plain("3") == "3" and plain(None) is None
    assert plain((np.int64(2), {"a": [torch.tensor(0.5)]})) == (2, {"a": [0.5]})
    seen = takes_numbers("data")(lambda size, data: (size, data))(np.int64(3), data=(number := [np.int64(4)]))
    assert type(seen[0]) is int and seen[1] is number


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_group_rates_accept_numpy_and_torch_numbers(number):
    def work(job):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(np.int64(20), np.int64(4)), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=number(0.125), betas=(np.float64(0.5), np.float64(0.75)))
        model, optimizer, batches = job.prepare(model, optimizer, DATA, batch_size=np.int64(8), epochs=np.int64(2))
        for ids, y in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(ids.unsqueeze(1)).squeeze(1), y).backward()
            optimizer.step()
        return model.state_dict()

    with Group(2) as group:
        same(*group.run(work))
