import pytest

from springtide.domain.plan.scale_plan import PodWish, ScalePlan
from springtide.domain.spec import schema as spec_schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.k8s.objects import crds
from springtide_lab.kubernetes.objects import schema as object_schema
from tests.unit.platforms.k8s import making


def schema(definition):
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def refusals(definition, thing):
    """Validation faults of an API server, and the fields it would prune."""
    part = schema(definition)["properties"]["spec"]
    kept = object_schema.prune(thing["spec"], part)
    return [
        *object_schema.faults(thing["spec"], part, "spec"),
        *(f"unknown field {name}" for name in thing["spec"] if name not in kept),
    ]


def parts(schema_part):
    """All schemas within a schema."""
    yield schema_part
    for each in (schema_part.get("properties") or {}).values():
        yield from parts(each)
    for key in ("items", "additionalProperties"):
        if isinstance(schema_part.get(key), dict):
            yield from parts(schema_part[key])


@pytest.mark.parametrize("definition", crds.all_definitions(), ids=lambda each: each["metadata"]["name"])
def test_schema_is_structural(definition):
    """Every part has a type or is marked as preserved; an API server refuses it otherwise."""
    for part in parts(schema(definition)):
        free = part.get("x-kubernetes-preserve-unknown-fields") or part.get("x-kubernetes-int-or-string")
        assert free or part["type"] in {"object", "array", "string", "integer", "number", "boolean"}, part
        assert not (part.get("properties") and part.get("additionalProperties"))
        if part.get("type") == "array":
            assert "items" in part
    (version,) = definition["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"


def test_every_job_field_is_in_the_schema_with_its_description():
    properties = schema(crds.elastic_jobs())["properties"]["spec"]["properties"]
    fields = {field.key: field for field in spec_schema.fields_of(ElasticJob) if field.name != "name"}
    assert properties.keys() == fields.keys()
    for key, field in fields.items():
        assert properties[key].get("description", "") == field.words


def test_our_job_object_is_accepted():
    job = spec_schema.from_spec(
        {
            "script": "train.py",
            "arguments": ["--epochs", "3"],
            "workers": {"min": 2, "max": 8, "memory": "4G"},
            "dataWorkers": 2,
            "tables": {"user": {"ttl": 100}},
            "checkpoints": {"everyS": 10, "url": "s3://b/c"},
            "kubernetes": {
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "nodeSelector": {"pool": "cpu"},
                "affinity": {"nodeAffinity": {}},
                "runVolume": {"size": "1Gi"},
                "keepS": 60,
            },
        },
        "ctr",
    )
    assert refusals(crds.elastic_jobs(), spec_schema.to_plain(job)) == []


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({}, "script"),
        ({"script": "t.py", "wokers": {}}, "wokers"),
        ({"script": "t.py", "workers": {"count": 0}}, "greater than or equal to 1"),
        ({"script": "t.py", "sync": "sometimes"}, "sometimes"),
        ({"script": "t.py", "kubernetes": {"start": "together"}}, "together"),
        ({"script": ["t.py"]}, "string"),
    ],
)
def test_invalid_spec_is_refused_by_the_cluster(spec, word):
    assert any(word in each for each in refusals(crds.elastic_jobs(), {"spec": spec}))


def test_our_scale_plan_is_accepted():
    pods = (PodWish(role="worker", rank=0, incarnation=1, cpu=0.5, memory=1 << 30), PodWish(role="server", rank=0))
    plan = ScalePlan(job="ctr", origin="master", pods=pods, kill=("ctr-worker-0-0",))
    plain = spec_schema.plain_of(plan)
    assert refusals(crds.scale_plans(), {"spec": plain}) == []
    assert spec_schema.made(ScalePlan, plain) == plan


def test_status_schema_preserves_unknown_fields():
    for definition in crds.all_definitions():
        assert schema(definition)["properties"]["status"]["x-kubernetes-preserve-unknown-fields"]


def test_printer_columns_refer_to_schema_fields():
    for definition in crds.all_definitions():
        (version,) = definition["spec"]["versions"]
        for column in version["additionalPrinterColumns"]:
            first, second = column["jsonPath"].lstrip(".").split(".")
            if first != "metadata":
                assert second in schema(definition)["properties"][first]["properties"], column


def test_fixed_job_fields_are_immutable():
    rules = schema(crds.elastic_jobs())["properties"]["spec"]["x-kubernetes-validations"]
    for field in crds.FIXED:
        assert any(f"self.{field} == oldSelf.{field}" in rule["rule"] for rule in rules)
    fields = {field.key for field in spec_schema.fields_of(ElasticJob)}
    assert fields >= set(crds.FIXED) | {"stopped"}


def test_job_object_is_read_back():
    spec = {"script": "train.py", "kubernetes": {"graceS": 5}}
    job = making.job(spec=spec, annotations={"springtide.dev/code": "ctr-code"}, status={"phase": "Succeeded"})
    assert (job.name, job.code, job.over, job.job.kubernetes.grace_s) == ("ctr", "ctr-code", True, 5)
