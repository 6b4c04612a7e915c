"""The API: documents of live and past jobs, their description, and the front end's files."""

import json
import os
import pathlib
import time
import urllib.parse

import pytest

from springtide.dashboard import app, openapi
from springtide.dashboard.endpoints import ENDPOINTS
from springtide.domain.spec.online_job import OnlinePoint
from springtide.telemetry import logs, planner_views, progress
from springtide.telemetry.events import Series
from tests.architecture import sources
from tests.unit.cli.show.test_status import FAILED, FINISHED, folder, make_past_run  # noqa: F401 - folder is a fixture
from tests.unit.cli.show.test_stream_status import ENDED
from tests.unit.dashboard.web import application, ask

PLAN = {"outcome": "taken", "shape": "2 workers", "why": "it is faster", "stage": "sample", "throughput": 9000.0}
CHECKPOINT = {"number": 3, "outcome": "complete", "full": True, "bytes": 100, "seconds": 0.1, "where": "/gone"}


@pytest.fixture
def files(folder):  # noqa: F811
    told = [("plan", PLAN), ("checkpoint", CHECKPOINT), ("online", {"workers": 2, "why": "all is well"})]
    return make_past_run(folder, "clicks", began_at=100.0, status=ENDED, told=told)


@pytest.fixture
def page(files):
    return application(files.root.parent)


def test_jobs_are_listed_newest_first_with_their_speed(page, files, folder):  # noqa: F811
    log = progress.ProgressLog(files.progress)
    for second in range(100):
        log.add(progress.ProgressPoint(at=100.0 + second, samples=second, samples_per_s=float(second)))
    make_past_run(folder, "old", began_at=50.0, status=FAILED)
    new, old = ask(page, "/api/jobs").json["jobs"]
    assert (new["name"], old["name"]) == ("clicks", "old") and old["why"] == "ValueError: no (train.py:3)"
    assert len(new["spark"]) <= 40 and new["spark"] == sorted(new["spark"])


def test_job_page_has_the_status_of_the_command_line(page):
    found = ask(page, "/api/jobs/clicks").json
    assert found["status"]["online"]["backlog"] == 12_345 and not found["running"]


def test_job_whose_master_does_not_answer_says_so(page, folder):  # noqa: F811
    pid = os.getpid()
    files = make_past_run(folder, "hangs", began_at=200.0, agent_pid=pid, agent_start=logs.start_of(pid))
    files.secret.write_text("00")
    files.master.write_text('{"term": 1, "pid": 1, "address": "127.0.0.1:1"}')
    import springtide.platforms.agent.master_client as master_client

    defaults = master_client.ask_master.__kwdefaults__
    defaults["within_s"], before = 0.0, defaults["within_s"]
    try:
        found = ask(page, "/api/jobs/hangs").json
    finally:
        defaults["within_s"] = before
    assert found["running"] and found["trouble"]


def test_history_has_points_after_a_time_forecast_and_predictions(page, files):
    common = {"arriving": 5.0, "trained": 5.0, "lag_s": 0.5, "backlog": 2.0, "workers": 2, "wanted": 2}
    Series(files.online, OnlinePoint, most=10).add(OnlinePoint(at=100.0, **common), OnlinePoint(at=115.0, **common))
    files.forecast.write_text('{"at": 100, "step_s": 600, "mean": [1], "high": [2]}')
    found = ask(page, "/api/jobs/clicks/history?since=100").json
    assert [point["at"] for point in found["online"]] == [115.0] and found["forecast"]["high"] == [2]
    assert [speed for _, speed in found["predicted"]] == [9000.0]


def test_events_carry_their_sentence_and_their_inputs(page):
    plan, saved, online, ended = ask(page, "/api/jobs/clicks/events").json["events"]
    assert (
        plan["text"].startswith("planned: 2 workers, 9,000 samples/s expected") and plan["inputs"]["stage"] == "sample"
    )
    assert saved["text"] == "" and online["text"] == "2 workers stay: all is well"
    assert ended["text"].startswith("the job is") and "status" not in ended["inputs"]
    assert [event["number"] for event in ask(page, "/api/jobs/clicks/events?after=2").json["events"]] == [3]


def test_checkpoints_say_how_to_continue(page, files):
    found = ask(page, "/api/jobs/clicks/checkpoints").json
    assert found["checkpoints"][0]["number"] == 3 and not found["checkpoints"][0]["kept"] and found["resume"] == ""


def test_logs_are_filtered_and_hide_credentials(page, files):
    (files.logs / "worker-0.log").write_text("one\ntwo password=hunter22\nthree\n")
    (files.logs / "master.log").write_text("started\n")
    found = ask(page, "/api/jobs/clicks/logs?lines=2").json
    assert found["roles"] == ["master", "worker-0"]
    assert [line["text"] for line in found["lines"]] == ["started", "two password=hidden", "three"]
    found = ask(page, "/api/jobs/clicks/logs?search=ONE&role=worker-0").json
    assert [(line["role"], line["text"]) for line in found["lines"]] == [("worker-0", "one")]


def test_live_updates_of_a_past_job_are_one_update_and_the_end(page):
    reply = ask(page, "/api/jobs/clicks/live")
    data, end, rest = reply.body.decode().split("\n\n")
    update = json.loads(data.removeprefix("data: "))
    assert update["whole"] and len(update["events"]) == 4 and update["page"]["name"] == "clicks"
    assert end.startswith("event: end") and not rest


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/api/jobs/nobody", 404, "nobody"),
        ("/api/jobs/nobody/live", 404, "nobody"),
        ("/api/jobs/clicks/logs?role=nobody", 404, "nobody"),
        ("/api/jobs/clicks/history?since=now", 400, "since='now'"),
        ("/api/nothing", 404, "no such path"),
    ],
)
def test_wrong_request_is_told_why(page, path, status, why):
    reply = ask(page, path)
    assert reply.status == status and why in reply.json["error"]


def test_orders_are_checked_before_they_reach_a_job(files):
    page = application(files.root.parent, control=True)
    path = "/api/jobs/clicks/scale"
    for body, why in ((b'{"workers": 0}', "expected 1 or more"), (b"{}", "give a number"), (b"[", "no ScaleOrder")):
        reply = ask(page, path, method="POST", body=body)
        assert reply.status == 400 and why in reply.json["error"]
    assert "does not run" in ask(page, path, method="POST", body=b'{"workers": 2}').json["error"]


def test_openapi_describes_every_endpoint(page):
    found = ask(page, "/api/openapi.json").json
    assert {endpoint.path for endpoint in ENDPOINTS} <= set(found["paths"])
    assert found["components"]["schemas"]["ScaleOrder"]["properties"]["workers"]["anyOf"][0] == {"type": "integer"}
    assert openapi.description()["openapi"] == "3.1.0"


def test_types_of_the_front_end_are_those_of_the_api():
    scope = {"__name__": "tool", "__file__": str(sources.ROOT / "tools" / "dashboard_types.py")}
    exec((sources.ROOT / "tools" / "dashboard_types.py").read_text(), scope)
    page = sources.ROOT / "dashboard" / "src" / "types.ts"
    assert page.read_text() == scope["text"](), "run: .venv/bin/python tools/dashboard_types.py"


def test_files_of_the_front_end_are_served_and_nothing_else(page, tmp_path, monkeypatch):
    monkeypatch.setattr(app, "STATIC", tmp_path / "static")
    assert "make dashboard" in ask(page, "/", token="").body.decode()
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("<html>")
    (tmp_path / "secret").write_text("x")
    assert ask(page, "/", token="").body == b"<html>"
    for path in ("/../secret", "/nothing.js", "//etc/passwd"):
        assert ask(page, path, token="").status == 404


def test_status_that_changes_is_sent_again(page, files):
    assert ask(page, "/api/jobs/clicks/history").json["progress"] == []
    log = progress.ProgressLog(files.progress)
    log.add(progress.ProgressPoint(at=time.time(), samples=1, samples_per_s=1.0))
    assert len(ask(page, "/api/jobs/clicks/history").json["progress"]) == 1


def test_job_of_one_shape_has_no_prediction(folder):  # noqa: F811
    files = make_past_run(folder, "good", began_at=1.0, status=FINISHED)
    assert ask(application(pathlib.Path(files.root.parent)), "/api/jobs/good/history").json["predicted"] == []


def test_plan_of_a_job_is_explained_and_shapes_can_be_tried(folder):  # noqa: F811
    told = [("plan", PLAN | {"epoch": 4})]
    files = make_past_run(folder, "planned", began_at=1.0, status=FINISHED, told=told)
    page = application(files.root.parent)
    assert "its size is fixed" in ask(page, "/api/jobs/planned/plan").json["error"]
    planner_views.write(files.view, planner_views.read(sources.ROOT / "examples" / "plan_job.yaml"))
    planner_views.keep(files, 4)
    assert ask(page, "/api/jobs/planned/events").json["events"][0]["explained"]
    for query in ("", "?epoch=4"):
        found = ask(page, f"/api/jobs/planned/plan{query}").json
        assert found["why"] and any(candidate["now"] for candidate in found["candidates"]), found
    now = found["now"]
    known = next(candidate for candidate in found["candidates"] if candidate["now"])

    def tried_with(**changed):
        query = urllib.parse.urlencode({name: value for name, value in (now | changed).items() if value})
        return ask(page, f"/api/jobs/planned/plan/shape?{query}")

    tried = tried_with().json
    assert tried["throughput"] == pytest.approx(known["throughput"]) and tried["allowed"]
    tried = tried_with(workers=5000).json
    assert not tried["allowed"] and "quota" in tried["why"]
    assert tried_with(workers=-1).status == 400


def test_map_of_an_ended_job_says_that_it_is_over(page):
    reply = ask(page, "/api/jobs/clicks/map")
    assert reply.status == 400 and "does not run" in reply.json["error"]


def test_dashboard_without_a_brain_says_so(page, folder, monkeypatch):  # noqa: F811
    assert not ask(page, "/api/info").json["brain"]
    assert "no brain has served" in ask(page, "/api/brain").json["error"]
