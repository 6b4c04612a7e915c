"""Trace files are read; errors name the line, the field and the expected value."""

import json

import pytest

from springtide import errors
from springtide.sim.world import workload


def write(tmp_path, text, name="trace.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_example_trace_is_read_back(tmp_path):
    world, jobs = workload.read(write(tmp_path, workload.example(), "trace.json"))
    assert [job.name for job in jobs] == ["ads", "feed", "search"]
    assert world.size.nodes == 20 and jobs[2].faults.hot == 1.5
    assert jobs[2].samples == 100_000 * 512


def test_json_and_yaml_traces_are_equivalent(tmp_path):
    yaml = "jobs:\n  - model: dcn\n    at: 5\n    workers: 3\n"
    as_json = json.dumps({"jobs": [{"model": "dcn", "at": 5, "workers": 3}]})
    assert workload.read(write(tmp_path, yaml)) == workload.read(write(tmp_path, as_json, "trace.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "jobs:\n  - model: widedeap\n",
            "trace.yaml:2: jobs[0]: no model named 'widedeap'. Did you mean 'widedeep'",
        ),
        (
            "jobs:\n  - model: dcn\n    wokers: 3\n",
            "trace.yaml:3: jobs[0].wokers: no field named 'wokers'. Did you mean 'workers'",
        ),
        (
            "jobs:\n  - model: dcn\n    workers: 0\n",
            "trace.yaml:3: jobs[0].workers: workers 0: must be 1 or more",
        ),
        ("jobs:\n  - model: dcn\n    workers: many\n", "trace.yaml:3: jobs[0].workers"),
        ("jobs:\n  - model: dcn\n    workers: 501\n", "workers 501: must be at most 500"),
        ("jobs:\n  - model: dcn\n    steps: .nan\n", "trace.yaml:3: jobs[0].steps"),
        ("jobs:\n  - model: dcn\n    at: .inf\n", "trace.yaml:3: jobs[0].at"),
        ("jobs:\n  - model: dcn\n    worker_cpu: 0\n", "worker_cpu 0: must be cores, above 0"),
        ("jobs:\n  - at: 3\n", "trace.yaml:2: jobs[0]: a TracedJob needs model too"),
        ("jobs: []\n", "trace.yaml:1: jobs: 0 jobs of 0 names; expected at least one job"),
        ("jobs:\n  - 5\n", "trace.yaml:2: jobs[0]: expected the fields of a TracedJob, got int"),
        ("job:\n  - model: dcn\n", "trace.yaml:1: job: no field named 'job'. Did you mean 'jobs'"),
        (
            "world: {nods: 3}\njobs: [{model: dcn}]\n",
            "trace.yaml:1: world.nods: no parameter named 'nods'. Did you mean 'nodes'",
        ),
        (
            "world:\n  nodes: -3\njobs: [{model: dcn}]\n",
            "trace.yaml:2: world.nodes: -3: must be above 0",
        ),
        (
            "world: {nodes: 0}\njobs: [{model: dcn}]\n",
            "trace.yaml:1: world.nodes: 0: must be above 0",
        ),
        (
            "jobs:\n  - {model: dcn, name: a}\n  - {model: dcn, name: a}\n",
            "trace.yaml:1: jobs: 2 jobs of 1 names; expected at least one job, and unique names",
        ),
        ("jobs: [\n  {model: dcn\n", "not YAML"),
        ("", "the file: expected the fields of the file, got nothing"),
        ("- 1\n", "expected the fields of the file"),
    ],
)
def test_trace_error_has_its_line_and_field(tmp_path, text, said):
    with pytest.raises(errors.BadInput) as caught:
        workload.read(write(tmp_path, text))
    assert said in str(caught.value)


def test_broken_json_is_reported_with_its_line(tmp_path):
    with pytest.raises(errors.BadInput, match=r"trace\.json:2: not JSON"):
        workload.read(write(tmp_path, '{"jobs": [\n  {"model" "dcn"}]}', "trace.json"))


def test_missing_trace_file_is_named():
    with pytest.raises(errors.MissingFile, match=r"no file nowhere\.yaml"):
        workload.read(workload.pathlib.Path("nowhere.yaml"))
