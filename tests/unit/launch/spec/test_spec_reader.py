"""Read valid and invalid specs."""

import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import RoleWish, TableWish
from springtide.launch.spec import spec_reader

PATH = pathlib.Path("job.yaml")
WHOLE = """\
apiVersion: springtide.dev/v1alpha1
kind: ElasticJob
metadata:
  name: ctr          # what it is called
  namespace: ml
spec:
  script: train.py
  arguments: ["--epochs", 3, --rate, 1e-3]
  data: {train: s3://clicks/2026, test: 010}
  environment:
    VERSION: 1.10
    WHEN: 2026-11-16
    FLAG: yes
  dataWorkers: off
  cache: on
  workers: &some
    min: 1
    max: 4
    cpu: 1e0
  servers: {<<: *some, max: 2, memory: 4Gi}
  tables:
    user: {ttl: 100, dtype: float16}
  following:
    on: off
  kubernetes:
    tolerations: [{key: spot, operator: Exists, tolerationSeconds: 30}]
"""


def mistakes(text):
    with pytest.raises(errors.BadInput) as told:
        spec_reader.parse(text, PATH)
    return str(told.value).splitlines()


def test_whole_spec_object_is_read():
    found = spec_reader.parse(WHOLE, PATH)
    job = found.job
    assert (job.name, found.namespace, job.script) == ("ctr", "ml", "train.py")
    assert job.arguments == ("--epochs", "3", "--rate", "1e-3")
    assert job.data == {"train": "s3://clicks/2026", "test": "010"}
    assert job.environment == {"VERSION": "1.10", "WHEN": "2026-11-16", "FLAG": "yes"}
    assert (job.data_workers, job.cache, job.following.on) == ("off", "on", False)
    assert job.workers == RoleWish(min=1, max=4, cpu=1.0) and job.servers == RoleWish(
        min=1, max=2, cpu=1.0, memory="4Gi"
    )
    assert job.tables == {"user": TableWish(ttl=100, dtype="float16")}
    assert job.kubernetes.tolerations == ({"key": "spot", "operator": "Exists", "tolerationSeconds": 30},)
    assert ("workers", "min") in found.given and ("name",) in found.given and ("seed",) not in found.given


def test_bare_spec_suffices_and_json_is_accepted():
    assert spec_reader.parse("name: ctr\nscript: train.py\n", PATH).job.name == "ctr"
    assert spec_reader.parse('{"script": "train.py", "seed": 3}', PATH).job.seed == 3
    assert spec_reader.parse("---\nscript: train.py\n---\n", PATH).job.script == "train.py"


def test_code_folder_is_that_of_the_spec_or_its_working_dir():
    assert spec_reader.parse("script: t.py", pathlib.Path("jobs/job.yaml")).folder == pathlib.Path("jobs")
    assert spec_reader.parse("script: t.py\nworkingDir: ../src", pathlib.Path("jobs/a.yaml")).folder == pathlib.Path(
        "jobs/../src"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.yaml:1:1: empty; expected the spec of a job, at least `script: train.py`"),
        ("# nothing\n---\n", "job.yaml:1:1: empty"),
        ("train.py", "job.yaml:1:1: expected a mapping such as `script: train.py`, got train.py"),
        ("- a\n- b", "job.yaml:1:1: expected a mapping such as `script: train.py`, got a list of 2"),
        ("seed: 3", "job.yaml:1:1: no script; expected `script: train.py`"),
        ("script:", "job.yaml:1:1: no script"),
        ("script: ''", "job.yaml:1:9: script: script: give the training script"),
        ("script: t.py\nworkres: {}", "job.yaml:2:1: workres: no field of that name. Did you mean 'workers'?"),
        ("script: t.py\nworkers:\n  mni: 1", "job.yaml:3:3: workers.mni: no field of that name. Did you mean 'min'?"),
        ("script: t.py\nworkers:\n  min: two", "job.yaml:3:8: workers.min: got two, expected a whole number"),
        ("script: t.py\nworkers: {min: 4, max: 2}", "job.yaml:2:16: workers.min: min 4: must not be above max, 2"),
        ("script: t.py\nseed: '3'", 'job.yaml:2:7: seed: got "3", expected a whole number'),
        ("script: t.py\nseed: 3\nseed: 4", "job.yaml:3:1: seed: given twice, first in line 2; leave one out"),
        ("script: t.py\n---\nscript: u.py", "job.yaml:3:1: a second document begins here; expected one job a file"),
        ("script: t.py\nworkers:\n\tmin: 1", "job.yaml:3:1: a tab; YAML is indented by spaces only"),
        ("script: a: b", "job.yaml:1:10: a second ': ' on one line"),
        ("script: [a", "job.yaml:1:11: not YAML"),
        ("script: t.py\nseed", "job.yaml:2:5: no ':' after a name"),
        ("script: t.py\n? [a]\n: b", "job.yaml:2:3: a name that is not text"),
        ("script: !!python/name:os.system t.py", "job.yaml:1:9: script: a tag, "),
        ("script: &a [*a]", "job.yaml:1:"),
        ("script: *nobody", "job.yaml:1:9: not YAML: found undefined alias"),
        ("script: t.py\nworkers: {<<: 3}", "job.yaml:2:15: workers: `<<` needs an alias of a mapping"),
        ("script: t\x00.py", "job.yaml:1:10: an invalid character in YAML"),
        ("kind: Job\nspec: {script: t.py}", "job.yaml:1:7: kind: got 'Job', expected ElasticJob"),
        (
            "apiVersion: v1\nspec: {script: t.py}",
            "job.yaml:1:13: apiVersion: got 'v1', expected springtide.dev/v1alpha1",
        ),
        ("metadata: {name: Mine}\nspec: {script: t.py}", "job.yaml:1:18: metadata.name: job name 'Mine'"),
        ("metadata: ctr\nspec: {script: t.py}", 'job.yaml:1:11: metadata: got "ctr", expected a mapping'),
        ("metadata: {name: ctr}\nscript: t.py", "job.yaml:1:1: got nothing as spec"),
    ],
)
def test_spec_mistake_has_line_column_and_advice(text, said):
    assert mistakes(text)[0].startswith(said)


def test_spec_mistakes_are_reported_together_in_file_order():
    told = mistakes("seed: x\nscript: t.py\nsync: bsb\nworkers:\n  cpu: lots\nseed: 4\nquotas: {}\n")
    assert [line.split(": ")[0] for line in told] == [
        "job.yaml:1:7",
        "job.yaml:3:7",
        "job.yaml:5:8",
        "job.yaml:6:1",
        "job.yaml:7:1",
    ]
    many = mistakes("script: t.py\n" + "".join(f"f{number}: 1\n" for number in range(30)))
    assert len(many) == spec_reader.SHOWN + 1 and many[-1] == "and 10 more mistakes"


def test_yaml_alias_bomb_is_refused_quickly():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert any("more than 100,000 values" in line for line in mistakes("script: t.py\n" + "\n".join(rows)))


def test_unreadable_spec_files_are_described(tmp_path):
    (tmp_path / "ctr.yaml").write_text("script: t.py")
    with pytest.raises(errors.MissingFile, match=r"no file .*; there is .*ctr\.yaml; docs"):
        spec_reader.read(tmp_path / "job.yaml")
    with pytest.raises(errors.MissingFile, match=r"is a directory; expected the spec .*ctr\.yaml"):
        spec_reader.read(tmp_path)
    (tmp_path / "other.yaml").write_bytes(b"script: \xff")
    with pytest.raises(errors.BadInput, match="not UTF-8 at byte 8"):
        spec_reader.read(tmp_path / "other.yaml")
    (tmp_path / "large.yaml").write_bytes(b" " * (spec_reader.MOST_BYTES + 1))
    with pytest.raises(errors.BadInput, match="larger than 1 MiB"):
        spec_reader.read(tmp_path / "large.yaml")


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("script: tpy\n\t[]{}&*<->|'\"!#%,", max_size=80))
def test_any_spec_text_gives_a_job_or_one_user_error(text):
    try:
        assert spec_reader.parse(text, PATH).job.script
    except errors.UserError as error:
        assert str(error).startswith("job.yaml:")


def test_spec_survives_yaml_round_trip():
    import yaml

    job = spec_reader.parse(WHOLE, PATH).job
    assert spec_reader.parse(yaml.safe_dump(schema.to_plain(job)), PATH).job == job


def test_specs_of_examples_and_docs_are_valid():
    root = pathlib.Path(__file__).resolve().parents[4]
    job = spec_reader.read(root / "examples" / "job.yaml").job
    assert (root / "examples" / job.script).is_file()
    page = (root / "docs" / "how-to" / "submitting.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.M | re.S)
    assert [spec_reader.parse(block, PATH).job.script for block in blocks] == ["train.py", "train.py"]
