"""The brain's database on SQLite: creation, versions, sharing, and invalid rows."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.brain.decide.cluster_state import LiveJobView
from springtide.brain.decide.triggers import Administrator
from springtide.brain.store import rows, store
from springtide.domain.plan.view import PastJob
from tests.architecture import sources
from tests.unit.planning import views


def past(name="wide", **more):
    fields = {
        "user": "ada",
        "features": {"model": "wide", "batch": 512.0},
        "initial": views.shape(workers=1),
        "shape": views.shape(),
        "ended_at": 1000.0,
        "throughput": 321.5,
        "facts": views.FACTS,
    }
    return PastJob(name=name, **(fields | more))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def open_database(path):
    with closing(store.open_store(str(path))) as found:
        yield found


def test_recorded_job_is_read_back(open_database):
    open_database.remember(past())
    open_database.remember(past("deep", finished=False, ended_at=2000.0, shape=None, throughput=None, facts=None))
    assert open_database.history() == store.StoredHistory(
        jobs=(past(), past("deep", finished=False, ended_at=2000.0, shape=None, throughput=None, facts=None))
    )
    assert open_database.count() == 2


def test_job_recorded_twice_is_kept_once(open_database):
    open_database.remember(past())
    open_database.remember(past())
    assert open_database.count() == 1


def test_newest_jobs_are_read_oldest_first(open_database):
    for at in (3.0, 1.0, 2.0):
        open_database.remember(past(ended_at=at))
    assert [job.ended_at for job in open_database.history(newest=2).jobs] == [2.0, 3.0]


def test_reopening_the_database_changes_nothing(path, open_database):
    open_database.remember(past())
    with closing(store.open_store(f"sqlite:///{path}")) as again:
        assert again.history().jobs == (past(),)
        assert versions(path) == [store.VERSION]


def test_database_of_another_version_is_refused(path, open_database):
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE schema_version SET version = 9999")
    with pytest.raises(errors.BadInput, match=r"format 9999.*use the version that wrote it"):
        store.open_store(str(path))


def test_file_that_is_no_database_is_reported(path):
    path.write_text("not a database at all, but long enough to look like one" * 10)
    with pytest.raises(errors.HistoryUnavailable, match=r"file is not a database"):
        store.open_store(str(path))


def test_uncreatable_database_folder_is_reported(path):
    path.write_text("a file where a folder should be")
    with pytest.raises(errors.HistoryUnavailable):
        store.open_store(str(path / "deeper" / "history.db"))


def test_unknown_database_schemes_are_refused():
    with pytest.raises(errors.UnknownName, match="mysql"):
        store.open_store("mysql://here/brain")
    with pytest.raises(errors.BadInput, match="no URL"):
        store.open_store("")


@pytest.mark.extra("psycopg")
def test_password_is_not_shown():
    with pytest.raises(errors.HistoryUnavailable) as caught:
        store.open_store("postgresql://ada:sesame@127.0.0.1:1/brain")
    assert "sesame" not in str(caught.value)


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.MissingExtra, match=r"springtide\[brain\]"):
        store.open_store("postgresql://ada@127.0.0.1/brain")


SHAPE = {"workers": 1, "servers": 1, "worker_cpu": 1.0, "server_cpu": 1.0}
GARBAGE = [
    7,
    b"\xff",
    "not json",
    "{}",
    {"name": ""},
    {"name": 7},
    {"finished": "perhaps"},
    {"ended_at": "soon"},
    {"throughput": "fast"},
    {"features": []},
    {"features": {"a": []}},
    {"shape": SHAPE | {"workers": 0}},
    {"initial": SHAPE | {"workers": "many"}},
    {"need": {"rows": -1}},
    {"facts": {"dim": 0}},
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
def test_invalid_row_is_skipped(garbage):
    row = rows.row_of(past())
    assert rows.past_of(row) == past()
    bad = json.dumps(json.loads(row["job"]) | garbage) if isinstance(garbage, dict) else garbage
    assert rows.past_of(row | {"job": bad}) is None


def test_garbage_in_the_file_is_skipped_and_counted(path, open_database):
    open_database.remember(past())
    with closing(sqlite3.connect(path)) as file, file:
        for at, job in enumerate(("not json", b"\x00\xff", 12.5, '{"workers": -3}')):
            file.execute("INSERT INTO past_jobs (name, ended_at, job) VALUES ('bad', ?, ?)", (at, job))
        file.execute("UPDATE past_jobs SET job = CAST(x'ff7b' AS TEXT) WHERE name = 'bad' AND ended_at = 0")
    assert open_database.history() == store.StoredHistory(jobs=(past(),), unreadable=4)


def test_job_beyond_database_limits_is_refused(open_database):
    for bad in (past(""), past(ended_at=float("nan"))):
        with pytest.raises(errors.BadInput):
            open_database.remember(bad)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@st.composite
def any_past_job(draw):
    return PastJob(
        name=draw(TEXT.filter(bool)),
        user=draw(TEXT),
        ended_at=draw(st.floats(-1e12, 1e12)),
        features=draw(st.dictionaries(TEXT, TEXT | st.floats(allow_nan=False, allow_infinity=False), max_size=3)),
        initial=draw(st.none() | views.shapes()),
        shape=draw(st.none() | views.shapes()),
        finished=draw(st.booleans()),
        throughput=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        facts=draw(st.none() | st.just(views.FACTS)),
    )


@given(job=any_past_job())
def test_any_past_job_survives_conversion_to_a_row(job):
    assert rows.past_of(rows.row_of(job)) == job


def test_any_past_job_survives_sqlite():
    with closing(store.open_store("sqlite://")) as opened:

        @given(job=any_past_job())
        @settings(max_examples=20)
        def check(job):
            job = replace(job, name=f"{opened.count()} {job.name}")
            opened.remember(job)
            assert job in opened.history(newest=100_000).jobs

        check()


def test_non_finite_numbers_are_left_out(open_database):
    open_database.remember(past(throughput=float("nan"), features={"a": float("inf"), "b": 1, "c\0": "\ud800"}))
    (found,) = open_database.history().jobs
    assert found.throughput is None and found.features == {"b": 1.0, "c\N{REPLACEMENT CHARACTER}": "?"}


def test_database_being_created_by_another_process_is_waited_for(path, monkeypatch):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    waited = []
    monkeypatch.setattr(store.time, "sleep", lambda seconds: (waited.append(seconds), other.execute("rollback")))
    with closing(store.open_store(str(path))) as opened:
        assert waited and opened.count() == 0
    other.close()


WRITER = """
import sys
from springtide.brain.store import store
from springtide.domain.plan.view import PastJob
opened = store.open_store(sys.argv[1])
for number in range(40):
    opened.remember(PastJob(name=f"{sys.argv[2]}-{number}", ended_at=float(number)))
    opened.history()
opened.close()
"""


@pytest.mark.process
def test_two_processes_create_and_write_one_database_at_once(path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=sources.ROOT, stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.communicate(timeout=240)[1] == b"" and writer.returncode == 0
    with closing(store.open_store(str(path))) as opened:
        assert opened.count() == 80 and opened.history().unreadable == 0


def versions(path):
    with closing(sqlite3.connect(path)) as file:
        return [version for (version,) in file.execute("SELECT version FROM schema_version")]


def test_one_brain_at_a_time_serves_from_a_database(path):
    with closing(store.open_store(str(path))) as first, closing(store.open_store(str(path))) as second:
        first.claim()
        first.claim()
        with pytest.raises(errors.BadInput, match="another brain"):
            second.claim()
        first.close()
        second.claim()


def test_job_with_a_number_too_large_for_its_column_is_refused_by_name():
    live = LiveJobView(view=views.running(), epoch=2**63, seen_at=0.0, administrator=Administrator(period_s=1.0))
    with pytest.raises(errors.BadInput, match="epoch 9223372036854775808"):
        rows.live_row(live)
