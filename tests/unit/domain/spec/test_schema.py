"""Specs as plain data survive a round trip, and every mistake has its path."""

import typing
from dataclasses import is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import (
    CheckpointWish,
    ElasticJob,
    FollowingWish,
    KubernetesWish,
    PatienceWish,
    Quota,
    RayWish,
    RoleWish,
    RunVolume,
    TableWish,
)
from springtide.domain.spec.schema import Scalar

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
words = st.text(max_size=8)
counts = st.none() | st.integers(1, 1000)
amounts = st.none() | st.floats(0.01, 1e6)
memories = st.none() | st.integers(32, 4096).map("{}Mi".format)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
texts = st.dictionaries(words, words, max_size=3)
mappings = st.dictionaries(words, anything, max_size=2)
wishes = st.builds(RoleWish, count=counts, cpu=amounts, memory=memories) | st.builds(
    RoleWish, min=st.none() | st.integers(1, 5), max=st.none() | st.integers(5, 9), cpu=amounts
)
kubernetes = st.builds(
    KubernetesWish,
    node_selector=texts,
    tolerations=st.lists(mappings, max_size=2).map(tuple),
    image_pull_secrets=st.lists(words, max_size=2).map(tuple),
    affinity=mappings,
    run_volume=st.builds(RunVolume, claim=words, shared=st.booleans()),
    start=st.sampled_from(["gang", "one-by-one"]),
    tls=st.booleans(),
    keep_s=st.none() | st.integers(0, 99),
)
jobs = st.builds(
    ElasticJob,
    name=names,
    script=names,
    arguments=st.lists(words, max_size=3).map(tuple),
    environment=texts,
    data=texts,
    tables=st.dictionaries(words, st.builds(TableWish, ttl=st.none() | st.integers(0, 9)), max_size=2),
    workers=wishes,
    servers=wishes,
    data_workers=st.sampled_from(["auto", "off", "3"]),
    quota=st.builds(Quota, cpu=amounts, memory=memories),
    checkpoints=st.builds(CheckpointWish, every_s=st.none() | st.floats(0, 99), mirror=st.booleans()),
    following=st.builds(FollowingWish, on=st.booleans(), settings=texts, export_to=words),
    patience=st.builds(PatienceWish, tries=st.integers(1, 9)),
    plan=st.none() | st.booleans(),
    history=st.none() | words,
    stragglers=st.dictionaries(words, st.floats(0.1, 9), max_size=2),
    kubernetes=kubernetes,
    ray=st.builds(RayWish, resources=st.dictionaries(words, st.dictionaries(words, st.floats(0, 9)), max_size=2)),
)


@given(jobs)
def test_job_survives_writing_and_reading(job):
    plain = schema.to_plain(job, namespace="ml")
    assert plain["metadata"] == {"name": job.name, "namespace": "ml"}
    assert schema.from_plain(plain) == job
    assert schema.from_spec(schema.spec_of(job), job.name) == job
    assert schema.from_plain({"name": job.name, **schema.spec_of(job)}) == job


@given(anything)
def test_any_input_gives_a_job_or_problems(given):
    job, problems = schema.check(given)
    assert (job is None) == bool(problems)
    job, problems = schema.check({"script": "train.py", "workers": given, "arguments": given, "kubernetes": given})
    assert (job is None) == bool(problems)


def classes(kind):
    yield kind
    for field in schema.fields_of(kind):
        for inner in (field.kind, *typing.get_args(field.kind)):
            if is_dataclass(inner):
                yield from classes(inner)


def test_every_field_has_a_docstring():
    for kind in classes(ElasticJob):
        for field in schema.fields_of(kind):
            assert field.words, f"{kind.__name__}.{field.name} has no docstring"


def test_only_non_default_fields_are_written():
    job = ElasticJob(name="ctr", script="train.py", workers=RoleWish(max=4))
    assert schema.spec_of(job) == {"script": "train.py", "workers": {"max": 4}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"workres": {}}, "spec.workres: no field of that name. Did you mean 'workers'?"),
        ({"data_workers": "2"}, "spec.data_workers: no field of that name. Did you mean 'dataWorkers'?"),
        ({"sloLag": "2m"}, "spec.sloLag: no field of that name. Did you mean 'following.sloLag'?"),
        ({"workers": 3}, "spec.workers: got 3, expected a mapping such as {count: ..., min: ...}"),
        ({"workers": {"min": "two"}}, 'spec.workers.min: got "two", expected a whole number'),
        ({"workers": {"min": 1.5}}, "spec.workers.min: got 1.5, expected a whole number"),
        ({"workers": {"min": True}}, "spec.workers.min: got True, expected a whole number"),
        ({"workers": {"min": 3, "max": 2}}, "spec.workers.min: min 3: must not be above max, 2"),
        ({"workers": {"cpu": float("nan")}}, "spec.workers.cpu: got nan, expected a number"),
        ({"workers": {"memory": "lots"}}, "spec.workers.memory: memory 'lots'"),
        ({"sync": "bsq"}, "spec.sync: got 'bsq', expected async or bsp. Did you mean 'bsp'?"),
        ({"arguments": "--epochs 3"}, 'spec.arguments: got "--epochs 3", expected a list'),
        ({"arguments": ["a", {}]}, "spec.arguments[1]: got an empty mapping, expected text"),
        ({"environment": ["A=1"]}, "spec.environment: got a list of 1, expected a mapping of names to values"),
        ({"tables": {"user": {"dtype": "int8"}}}, "spec.tables.user: no dtype named 'int8'"),
        ({"kubernetes": {"start": "gnag"}}, "spec.kubernetes.start: got 'gnag', expected one-by-one or gang. Did you"),
        ({"following": {"exportEvery": "5m"}}, "spec.following.exportEvery: "),
        ({"name": "ctr"}, "spec.name: a name goes under metadata"),
    ],
)
def test_spec_mistake_is_reported_with_its_path(spec, said):
    _, problems = schema.check({"spec": {"script": "train.py", **spec}})
    (problem,) = problems
    assert str(problem).startswith(said)


def test_all_spec_mistakes_are_reported_at_once():
    with pytest.raises(errors.BadInput) as told:
        schema.from_plain(
            {
                "kind": "Job",
                "metadata": {"name": "Mine!"},
                "script": "x",
                "spec": {"sync": 3, "seed": "a", "wrokers": 1, "servers": {"count": "two", "memory": "lots"}},
            }
        )
    text = str(told.value)
    places = (
        "kind: got 'Job'",
        "metadata.name: job name",
        "this field belongs under spec",
        "spec.sync",
        "spec.seed",
        "spec.wrokers",
        "spec.servers.count: got",
        "spec.servers.memory: memory 'lots'",
    )
    assert all(place in text for place in (*places, "spec: no script; expected `script: train.py`"))


def test_scalars_are_read_as_written_text_or_as_numbers():
    written = {
        "script": Scalar("train.py", "train.py"),
        "dataWorkers": Scalar("off", False),
        "seed": Scalar("1e3", "1e3"),
        "environment": {"VERSION": Scalar("1.10", 1.1)},
        "servers": {"count": Scalar("2", 2)},
    }
    job, problems = schema.check(written)
    assert not problems
    assert (job.data_workers, job.seed, job.environment["VERSION"]) == ("off", 1000, "1.10")
    _, problems = schema.check({**written, "seed": Scalar("3", "3", quoted=True)})
    assert [str(each) for each in problems] == ['seed: got "3", expected a whole number']


def test_each_spec_class_survives_writing_and_reading():
    wish = RoleWish(min=1, memory="4Gi")
    assert schema.made(RoleWish, schema.plain_of(wish)) == wish
    with pytest.raises(errors.BadInput, match=r"workers\.mni: no field .*; workers\.cpu: got \"x\", expected a number"):
        schema.made(RoleWish, {"mni": 1, "cpu": "x"}, ("workers",))


def test_labels_and_annotations_of_the_job_reach_its_pods():
    spec = {"script": "t.py", "kubernetes": {"labels": {"note": "pod"}}}
    metadata = {"name": "ctr", "labels": {"team": "ads", "note": "job"}, "annotations": {"owner": "me"}}
    wish = schema.from_plain({"metadata": metadata, "spec": spec}).kubernetes
    assert wish.labels == {"team": "ads", "note": "pod"} and wish.annotations == {"owner": "me"}
    assert schema.from_plain({"metadata": metadata, "spec": {"script": "t.py"}}).kubernetes.labels["team"] == "ads"
    tools = {"app.kubernetes.io/instance": "argo", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    marked = {
        **metadata,
        "labels": {**metadata["labels"], **tools},
        "annotations": {"helm.sh/hook": "x", "owner": "me"},
    }
    assert schema.from_plain({"metadata": marked, "spec": spec}).kubernetes == wish, "those of tools are the job's"
    with pytest.raises(errors.BadInput, match="labels"):
        schema.from_plain({"metadata": {"name": "ctr", "labels": ["a"]}, "spec": {"script": "t.py"}})
