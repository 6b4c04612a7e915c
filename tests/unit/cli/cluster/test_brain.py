"""`springtide brain`: one-line errors and the status output."""

import json
import logging

import msgspec
import pytest

from springtide import errors
from springtide.brain.service import messages
from springtide.cli import app
from springtide.cli.cluster import brain
from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.view import PastJob
from tests.unit.planning import views


@pytest.fixture(autouse=True)
def _own_logging():
    """A command logs to standard error, which a test has for itself."""
    before, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)


MISTAKES = [
    (("status",), "no brain has served from"),
    (("serve", "--policy", "sprintide"), "Did you mean 'springtide'?"),
    (("serve", "--on", "slow"), "--on slow: expected NAME=VALUE, such as oom=static"),
    (("serve", "--on", "slwo=static"), "Did you mean 'slow'?"),
    (("serve", "--capacity", "many"), "expected CORES, CORES,SIZE or CORES,SIZE,GPUS"),
    (("serve", "--capacity", "-1"), "none may be below 0"),
    (("serve", "--capacity", "0"), "no job fits into this capacity; expected more than 0 of each"),
    (("serve", "--period", "0"), "expected seconds, more than 0"),
    (("serve", "--planning", "roh=1"), "Did you mean 'rho'?"),
    (("serve", "--planning", "rho"), "expected NAME=VALUE"),
    (("serve", "--planning", "rho=much"), "--planning rho: got 'much', expected a number"),
    (("serve", "--planning", "prices.cpu=-1"), "none may be below 0"),
    (("serve", "--planning", "prices.disk=1"), "no planning setting named"),
    (("serve", "--planning", "prices=1", "--planning", "prices.cpu=1"), "Did you mean 'prices.gpu'?"),
    (("serve", "--planning", "priority=remainign"), "Did you mean 'remaining'?"),
    (("serve", "--planning", "least_gain=nan"), "must be 0 or more"),
    (("serve", "--planning", "data_workers=maxpt"), "Did you mean 'maxtp'?"),
    (("serve", "--tls", "/dev/null/tls"), "cannot make certificates in /dev/null/tls"),
    (("serve", "--listen", "here"), "expected host:port"),
    (("serve", "--database", "mysql://x/y"), "no database named 'mysql'"),
    (("serve", "--secret-file", "nowhere"), "cannot read the brain's secret"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=[" ".join(one[0]) for one in MISTAKES])
def test_brain_mistake_is_reported_without_a_traceback(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["brain", *arguments]) == app.BAD_USAGE
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_secret_that_is_too_short_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("abcd")
    assert app.main(["brain", "serve", "--secret-file", "short"]) == app.BAD_USAGE
    assert "has 2 bytes; expected 16 or more" in capsys.readouterr().err


def test_planning_options_are_set_by_name():
    found = brain.planning_config({"rho": "1", "prices.cpu": "2", "similar": "5"}, "static")
    assert (found.policy, found.rho, found.prices.cpu, found.similar) == ("static", 1.0, 2.0, 5)
    assert brain.planning_config({"between_changes": "5"}, "static").between_changes_s == 5.0
    with pytest.raises(errors.UnknownName, match="policy"):  # it has an option of its own
        brain.planning_config({"policy": "static"}, "springtide")


def test_capacity_is_cores_and_optionally_memory():
    assert brain.parse_capacity("64") == ResourceBudget(cpu=64.0, memory=float("inf"))
    assert brain.parse_capacity("1.5,2G") == ResourceBudget(cpu=1.5, memory=2.0 * 2**30)
    assert brain.parse_capacity("1.5,2G,8") == ResourceBudget(cpu=1.5, memory=2.0 * 2**30, gpu=8.0)
    assert brain.parse_capacity("").cpu >= 1


def test_brain_status_shows_decisions_and_reasons_in_80_columns():
    job = messages.LiveJob(
        name="train@0a1b",
        user="ada",
        stage="adjusting",
        shape=views.shape(),
        seen_s=3.0,
        event="slow",
        cause="hot server",
        policy="springtide",
        why="server-0 has more to do than it can " * 4,
        promised=views.shape(workers=6),
    )
    status = messages.BrainStatus(
        address="127.0.0.1:7790",
        pid=7,
        up_s=61.0,
        database="sqlite:///a.db",
        held=ResourceBudget(cpu=40.0, memory=2**33),
        capacity=ResourceBudget(cpu=64.0, memory=float("inf")),
        executors=messages.ExecutorCount(wanted=2, pids=(8, 9)),
        jobs=(job,),
        past=1234,
        policies={"otherwise": "springtide", "oom": "static"},
        unreadable=2,
        trouble="the disk is full",
    )
    lines = brain.status_lines(status)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    for said in (
        "1 live jobs, 1,234 past jobs",
        "40 of 64 cores, memory 8G works",
        "2 of 2 executors",
        "oom: static",
        "2 past jobs with unreadable records",
        "the disk is full",
        "slow (hot server), asked springtide",
        "becomes 6",
    ):
        assert said in text
    bounded = msgspec.structs.replace(status, capacity=ResourceBudget(cpu=64.0, memory=2**38))
    assert "holds   40 of 64 cores, memory 8G of 256G" in brain.status_lines(bounded)


def test_history_is_read_without_a_brain(tmp_path, capsys):
    from springtide.brain.store import store

    path = tmp_path / "history.db"
    for named in (str(path), f"sqlite:///{path}"):
        assert app.main(["brain", "history", "--database", named]) == app.BAD_USAGE and not path.exists()
    opened = store.open_store(str(path))
    opened.remember(PastJob(name="wide", shape=views.shape(), ended_at=1e9))
    opened.close()
    capsys.readouterr()
    assert app.main(["brain", "history", "--database", str(path)]) == 0
    assert "wide" in capsys.readouterr().out.splitlines()[1]
    assert app.main(["brain", "history", "--database", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 1


def test_past_jobs_are_listed_with_their_outcome():
    past = (PastJob(name="wide", shape=views.shape(), ended_at=0.0), PastJob(name="deep", finished=False, ended_at=9e8))
    lines = brain.history_lines(messages.Recalled(jobs=past, unreadable=1, total=40))
    assert lines[1].endswith("finished 4 x 4 CPU         2 x 8 CPU")
    assert lines[2].split()[-3:] == ["failed", "-", "-"]
    assert max(map(len, lines)) <= 80
    odd = brain.history_lines(messages.Recalled(jobs=(PastJob(name="odd", ended_at=1e300),)))
    assert odd[1].startswith("1e+300")
    assert lines[-1] == "2 of 40 past jobs; 1 of them unreadable"
