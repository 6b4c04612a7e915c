"""`springtide submit --dry-run`: output and errors for a spec."""

import json

import pytest

from springtide.cli import app

SPEC = """\
metadata: {name: ctr, namespace: ml}
spec:
  script: train.py
  workers: {max: 2}
  servers: {count: 1}
  tables: {user: {ttl: 9}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(SPEC)
    return tmp_path


def test_dry_run_shows_the_job_and_the_source_of_each_value(folder, capsys):
    assert app.main(["submit", "job.yaml", "--dry-run", "--name", "mine", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[0] == "job mine, of job.yaml; nothing is started"
    said = [line.split() for line in lines]
    assert ["name", "mine", "--name"] in said and ["tables.user.ttl", "9", "spec"] in said
    assert ["sync", "async", "default"] in said and any("may become 1 to 2 workers" in line for line in lines)
    found = json.loads(last)
    assert found["object"]["spec"]["workers"] == {"max": 2} and found["resolved"]["servers"] == 1
    assert found["origins"]["workers.max"] == "spec" and not (folder / ".springtide").exists()


def test_dry_run_for_a_cluster_needs_no_cluster(folder, capsys):
    assert app.main(["submit", "job.yaml", "--dry-run", "--platform", "k8s"]) == 0
    assert "k8s chooses the open values when the job starts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("script: train.py", "script: trian.py"), "no script trian.py. Did you mean train.py?"),
        (("workers:", "workres:"), "job.yaml:4:3: spec.workres: no field of that name. Did you mean 'workers'?"),
        (("count: 1", "cpu: 4096"), "servers.cpu 4096 (--cpu): this machine has "),
        (("count: 1", "memory: 4096T"), "servers.memory 4096T (--memory): this machine has "),
    ],
)
def test_spec_mistakes_are_reported_before_anything_is_created(folder, capsys, change, said):
    (folder / "job.yaml").write_text(SPEC.replace(*change))
    assert app.main(["submit", "job.yaml", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (folder / ".springtide").exists()


def test_unknown_platform_and_mixed_platform_options_are_refused(folder, capsys):
    assert app.main(["submit", "job.yaml", "--platform", "kubernetes"]) == 2
    assert "no platform named 'kubernetes'" in capsys.readouterr().err
    assert app.main(["submit", "job.yaml", "--address", "auto", "--namespace", "ml"]) == 2
    assert "without a cluster: give --platform" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan", "job.yaml"], ["submit", "job.yaml", "--dry-run"]], ids=" ".join)
def test_plan_and_dry_run_show_the_scaling_bounds(folder, capsys, command):
    assert app.main(command) == 0
    assert "may become 1 to 2 workers" in capsys.readouterr().out
