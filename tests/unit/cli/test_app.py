"""The command line: help with examples, exit codes, errors without tracebacks."""

import json
import pathlib
import sys

import pytest

from springtide.cli import app, doctor
from springtide.cli.job import run
from springtide.cli.job.run_options import run_options
from springtide.domain.spec.elastic_job import CheckpointWish, ElasticJob, PatienceWish, RoleWish
from tests.commands import KNOWN


@pytest.mark.parametrize("verb", KNOWN)
def test_every_verbs_help_ends_in_examples_and_fits_80_columns(verb, capsys):
    assert app.main([*verb.split(), "--help"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    begins = next(at for at, line in enumerate(lines) if line.strip() in ("Example:", "Examples:"))
    assert lines[begins + 1].strip().startswith(f"springtide {verb}")
    assert lines[begins].strip() == "Example:" or len(lines) > begins + 2
    assert max(map(len, lines)) <= 80


def test_bare_command_prints_help_with_examples(capsys):
    assert app.main([]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out and "springtide run train.py" in out


def test_unknown_verb_or_option_is_bad_usage(capsys):
    assert app.main(["rnu"]) == 2
    assert "Did you mean 'run'?" in capsys.readouterr().err
    assert app.main(["run", "train.py", "--epochs", "3"]) == 2
    assert "springtide run train.py -- --epochs 3" in capsys.readouterr().err


def test_user_mistake_has_a_traceback_only_on_request(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["run", "nowhere.py"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no script nowhere.py.") and "Traceback" not in err
    assert app.main(["run", "nowhere.py", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "noise"], "noise: not UTF-8 at byte 0; expected a trace in YAML or JSON"),
        (["simulate", "."], ". is a directory; expected a trace in YAML or JSON"),
        (["plan", "noise"], "noise: not UTF-8 at byte 0; expected a view of jobs in YAML or JSON"),
        (["k8s", "status", "--kubeconfig", "noise"], "noise: not UTF-8 at byte 0; expected a kubeconfig"),
        (["k8s", "operator", "--brain-secret-file", "none"], "no file none; expected a brain's secret"),
        (["forecast", "noise"], "noise: not UTF-8 at byte 0; expected a CSV file of times and counts"),
        (["reproduce", "kale", "--out", "noise"], "--out noise: cannot create a folder there (File exists)"),
        (["bench", "plan", "--out", "noise"], "--out noise: cannot create a folder there (File exists)"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_invalid_file_is_reported_without_a_traceback(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    assert app.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench", "store"], ["reproduce", "herald"]])
def test_lab_commands_say_how_to_install_the_lab(capsys, monkeypatch, command):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert app.main(command) == 2
    assert "pip install ./lab" in capsys.readouterr().err


def test_unknown_benchmark_suggests_the_nearest(capsys):
    assert app.main(["bench", "stor"]) == 2
    assert "Did you mean 'store'?" in capsys.readouterr().err
    assert app.main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "  store " in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sync", "bps"], "no sync mode named 'bps'. Did you mean 'bsp'?"),
        (["--slots", "100"], "slots 100: must be a power of two, 64 or more"),
        (["--slots", "64", "--servers", "65"], "65 servers but only 64 slots"),
        (["--cpu", "0"], "cpu 0: expected a number of cores from 0.01 up, such as 0.5"),
        (["--cpu", "4096"], "workers.cpu 4096 (--cpu): this machine has "),
        (["--memory", "2"], "memory 2 bytes: a process needs 32M at least; give a unit, such as 2G"),
        (["--memory", "lots"], "memory 'lots': expected a number and a unit, such as 512M or 2G"),
        (["--name", "My Job"], "job name 'My Job': use lower-case letters"),
        (["--data-workers", "two"], "data workers 'two': give a number such as 2, auto or off"),
        (["--data-worker-cpu", "4096"], "dataWorkerCpu 4096 (--data-worker-cpu): this machine has "),
        (["--data-workers", "1", "--data-worker-cpu", "0"], "data_worker_cpu 0: must be cores, above 0"),
        (["--poison", "skp"], "no policy named 'skp'. Did you mean 'skip'?"),
        (["--export-every", "5m"], "export_every 5m: export_to is missing; give the place for exports"),
        (["--export-to", "x", "--export-every", "soon"], "export_every soon: expected a time above 0"),
        (["--export-to", "x", "--checkpoint-every", "0"], "(--export-to) needs checkpoints"),
        (["--planning", "rho"], "--planning rho: expected NAME=VALUE"),
        (["--history", "foo://bar"], "no database named 'foo'. Known: postgresql, sqlite."),
        (["--checkpoint-dir", "train.py"], "(--checkpoint-dir) train.py is a file; expected a folder"),
        (["--quota", "4096"], "quota.cpu 4096 (--quota): this machine has "),
        (["--workers", "1000000"], "1000000 workers and 1 servers: this machine has "),
        (["--seed", "-1"], "seed=-1: expected a whole number from 0 to 2^63 - 1"),
        (
            ["--heartbeat", "40"],
            "silence_s 30 (--silence) with heartbeat_s 40 (--heartbeat): every role would count as",
        ),
        (["--checkpoint-url", "nosuch://x"], "nosuch://x: Protocol not known: nosuch"),
        (["--export-to", "nosuch://x"], "nosuch://x: Protocol not known: nosuch"),
    ],
)
def test_invalid_settings_are_refused_before_anything_starts(tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert app.main(["run", "train.py", *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / ".springtide").exists()


def test_doctor_checks_everything_and_prints_json_last(capsys):
    code = app.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    states = {check["what"]: check["state"] for check in found["checks"]}
    assert states["python"] == states["packages"] == states["ports"] == "ok"
    assert code == (0 if found["ok"] else 3)
    assert all(check["fix"] for check in found["checks"] if check["state"] != "ok")


def test_doctor_says_how_to_get_a_missing_native_core(monkeypatch):
    monkeypatch.setitem(sys.modules, "springtide._native", None)
    check = doctor.check_native()
    assert check.state == "missing" and "`make env`" in check.fix  # the tests run in a clone


def test_run_options_make_an_elastic_job():
    options = run_options(script="train.py", workers=2, memory="1G", planning=["sample_s=5"], max_workers=4)
    job = run.job_of(options)
    assert (job.name, job.workers) == ("train", RoleWish(start=2, max=4, memory="1G"))
    fewest = run_options(script="train.py", workers=4, min_workers=2)
    assert run.job_of(fewest).workers == RoleWish(start=4, min=2)
    assert job.planning == {"sample_s": "5"} and job.checkpoints == CheckpointWish() and job.patience == PatienceWish()
    assert run.job_of(run_options(script="a/Train.py")) == ElasticJob(name="train", script="a/Train.py")


def test_scale_without_a_number_is_an_error(capsys, tmp_path):
    assert app.main(["scale", "--logs", str(tmp_path)]) == 2
    assert "--data-workers N" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["resume", "continue_from"])
def test_resume_and_continue_from_accept_a_run_name_or_a_path(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".springtide" / "runs" / "train").mkdir(parents=True)

    def resumed(named):
        return getattr(run.job_of(run_options(script="train.py", **{option: named})), option)

    assert resumed("train") == str(pathlib.Path(".springtide/runs/train"))
    assert [resumed(one) for one in ("", "other", "a/train", "s3://bucket/train")] == [
        "",
        "other",
        "a/train",
        "s3://bucket/train",
    ]
    (tmp_path / "train").mkdir()
    assert resumed("train") == "train"
