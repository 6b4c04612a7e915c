"""Trace files are read, and what is wrong with one is said with its line, its field and what was meant."""

import json

import pytest

from springtide import errors
from springtide.sim.world import workload


def write(tmp_path, text, name="trace.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_example_can_be_read_back(tmp_path):
    read = workload.read(write(tmp_path, workload.example(), "trace.json"))
    assert [job.name for job in read.jobs] == ["ads", "feed", "search"]
    assert read.world.size.nodes == 20 and read.jobs[2].faults.hot == 1.5
    assert read.jobs[2].samples == 100_000 * 512


def test_json_and_yaml_say_the_same(tmp_path):
    yaml = "jobs:\n  - model: dcn\n    at: 5\n    workers: 3\n"
    as_json = json.dumps({"jobs": [{"model": "dcn", "at": 5, "workers": 3}]})
    assert workload.read(write(tmp_path, yaml)) == workload.read(write(tmp_path, as_json, "trace.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "jobs:\n  - model: widedeap\n",
            "trace.yaml:2: jobs[0].model: no model named 'widedeap'. Did you mean 'widedeep'",
        ),
        (
            "jobs:\n  - model: dcn\n    wokers: 3\n",
            "trace.yaml:3: jobs[0].wokers: no field named 'wokers'. Did you mean 'workers'",
        ),
        (
            "jobs:\n  - model: dcn\n    workers: 0\n",
            "trace.yaml:3: jobs[0].workers: expected a whole number from 1, up to 500 (number), got 0",
        ),
        ("jobs:\n  - model: dcn\n    workers: many\n", "expected a whole number"),
        ("jobs:\n  - model: dcn\n    steps: .nan\n", "trace.yaml:3: jobs[0].steps"),
        ("jobs:\n  - model: dcn\n    at: .inf\n", "trace.yaml:3: jobs[0].at"),
        ("jobs:\n  - model: dcn\n    worker_cpu: 0\n", "expected a number above 0 (cores), got 0"),
        ("jobs:\n  - at: 3\n", "trace.yaml:2: jobs[0]: no model; expected one of widedeep, xdeepfm, dcn"),
        ("jobs: []\n", "trace.yaml:1: jobs: expected a list of jobs"),
        ("jobs:\n  - 5\n", "trace.yaml:2: jobs[0]: expected a job's fields, got int"),
        ("job:\n  - model: dcn\n", "trace.yaml:1: job: no section named 'job'. Did you mean 'jobs'"),
        (
            "world: {nods: 3}\njobs: [{model: dcn}]\n",
            "trace.yaml:1: world.nods: no parameter named 'nods'. Did you mean 'nodes'",
        ),
        (
            "world:\n  nodes: -3\njobs: [{model: dcn}]\n",
            "trace.yaml:2: world.nodes: expected a number, 0 or more, got -3",
        ),
        (
            "world: {nodes: 0}\njobs: [{model: dcn}]\n",
            "trace.yaml:1: world.nodes: no job can begin with 0; expected more",
        ),
        (
            "jobs:\n  - {model: dcn, name: a}\n  - {model: dcn, name: a}\n",
            "trace.yaml:3: jobs[1]: a second job is named 'a'",
        ),
        ("jobs: [\n  {model: dcn\n", "not YAML"),
        ("", "expected the sections world and jobs, got nothing"),
        ("- 1\n", "expected the sections"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_field(tmp_path, text, said):
    with pytest.raises(errors.BadInput) as caught:
        workload.read(write(tmp_path, text))
    assert said in str(caught.value)


def test_broken_json_has_its_line_too(tmp_path):
    with pytest.raises(errors.BadInput, match=r"trace\.json:2: not JSON"):
        workload.read(write(tmp_path, '{"jobs": [\n  {"model" "dcn"}]}', "trace.json"))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(errors.MissingFile, match=r"no file nowhere\.yaml"):
        workload.read(workload.pathlib.Path("nowhere.yaml"))
