"""Stream options of a user, and the display of how a job keeps up."""

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request

import msgspec
import pytest

from springtide import errors
from springtide.cli import app
from springtide.cli.common import render
from springtide.cli.common.render import line_of, picture
from springtide.cli.show import dashboard
from springtide.cli.show.dashboard import DashboardData
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import (
    ForecastStatus,
    OnlinePoint,
    OnlineState,
    OnlineTotals,
    ScalingStatus,
    StreamCounts,
)
from springtide.rpc.messages.types import DataStatus, JobStatus
from springtide.telemetry import logs
from springtide.telemetry.events import Series
from tests.unit.cli.show.test_status import folder, make_past_run, output  # noqa: F401 - folder is a fixture

STATE = OnlineState(
    lag_s=75.0,
    slo_lag_s=1200.0,
    backlog=12_345,
    arriving=800.0,
    trained=790.0,
    utilization=0.92,
    capacity=900.0,
    lag_p50_s=0.4,
    lag_p99_s=2.0,
    why="3 workers stay: 800 samples/s come",
    alert="cannot keep up: 5,000 samples/s come",
    expected=ForecastStatus(mean=1000.0, high=1200.0, why="like the last days"),
    scaling=ScalingStatus(fewest=1, most=4, changes=3),
    totals=OnlineTotals(hours=24.0, violation=0.026, lag_min=2204.0, down_min=1.5, worker_hours=242.0),
    stream=StreamCounts(late=7, corrupt=1, unkept=5, unkept_why="256 MiB are kept"),
)
ENDED = JobStatus(name="clicks", phase=JobPhase.STOPPED, why="stopped by Ctrl-C", elapsed_s=30.0, online=STATE)


def test_stream_options_are_those_of_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert app.main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--online", "--min-workers", "--max-workers", "--slo-lag"))
    (tmp_path / "train.py").write_text("")
    assert app.main(["run", "train.py", "--min-workers", "3", "--max-workers", "2"]) == 2
    assert "min 3: must not be above max, 2" in capsys.readouterr().err
    assert app.main(["run", "train.py", "--slo-lag", "soon"]) == 2
    assert app.main(["run", "train.py", "--online", "atuo"]) == 2
    assert "Did you mean 'auto'?" in capsys.readouterr().err


def test_stream_status_fits_80_columns(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    lines = output(capsys, "status", "clicks")
    text = " ".join(" ".join(lines).split())
    for said in (
        "lag 75 s of 20.0 min allowed, 12,345 samples waiting",
        "1,000/s forecast (at most 1,200)",
        "1 to 4 workers: 3 workers stay",
        "ALERT cannot keep up",
        "lag above the limit 2.60% of the time",
        "2,204 min",
        "242.0 worker-hours",
        "letters 7 late, 1 corrupt; 5 of these records left no dead letter: 256 MiB are kept",
    ):
        assert said in text
    assert json.loads(*output(capsys, "status", "clicks", "--json"))["online"]["totals"]["violation"] == 0.026


def test_line_and_live_view_show_the_lag():
    running = msgspec.structs.replace(ENDED, phase=JobPhase.RUNNING, samples=10, data=DataStatus(shards_total=4))
    assert "4 partitions" in line_of(running) and "shards" not in line_of(running)
    assert "lag 75 s ALERT" in line_of(running) and len(line_of(running)) <= 80
    assert picture(running) is not None


def test_metrics_of_a_finished_job_are_available(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    assert app.main(["metrics", "clicks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'springtide_stream_lag_seconds{job_name="clicks",run="clicks"} 75' in lines
    assert app.main(["metrics", "clicks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["springtide_stream_worker_hours"] == [{"labels": {}, "value": 242.0}]


def test_top_of_a_finished_job_is_its_last_line(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    assert output(capsys, "top", "clicks", "--once")[-1].startswith("  30.0 s  stopped")


@pytest.fixture
def page(folder):  # noqa: F811
    """Where a dashboard of a job is served."""
    told = [("online", {"workers": 2, "why": "all is well"}), ("alert", {"why": "cannot keep up"})]
    files = make_past_run(folder, "clicks", began_at=100.0, status=ENDED, told=told)
    series = Series(files.online, OnlinePoint, most=10)
    common = {"arriving": 5.0, "trained": 5.0, "lag_s": 0.5, "backlog": 2.0, "workers": 2, "wanted": 2}
    series.add(OnlinePoint(at=100.0, **common), OnlinePoint(at=115.0, **common))
    files.forecast.write_text('{"at": 100, "step_s": 600, "mean": [1], "high": [2]}')
    (run,) = logs.find_runs(folder)
    server = dashboard.serve(DashboardData(run), host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(url):
    with urllib.request.urlopen(url, timeout=60) as reply:
        return reply.headers, reply.read()


def test_dashboard_page_is_self_contained(page):
    headers, body = fetched(page + "/")
    assert (
        headers["Content-Type"].startswith("text/html") and "default-src 'none'" in headers["Content-Security-Policy"]
    )
    assert b"src=" not in body and b"@import" not in body and b"innerHTML" not in body


def test_page_data_are_status_new_points_forecast_and_events(page):
    data = json.loads(fetched(page + "/data.json?since=100")[1])
    assert [point["at"] for point in data["points"]] == [115.0] and data["status"]["online"]["backlog"] == 12_345
    assert data["forecast"]["high"] == [2] and data["job"] == "clicks" and not data["running"]
    said = [each["what"] for each in data["story"]]
    assert "2 workers stay: all is well" in said and "ALERT: cannot keep up" in said


@pytest.mark.parametrize(("path", "code"), [("/../secret", 404), ("/data.json?since=now", 503)])
def test_other_page_requests_are_refused(page, path, code):
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetched(page + path)
    with caught.value as refused:
        assert refused.code == code


def answer(page, *hosts, path="/data.json"):
    """Code and text for a request with these Host headers."""
    link = http.client.HTTPConnection(page.removeprefix("http://"), timeout=60)
    try:
        link.putrequest("GET", path, skip_host=True)
        for host in hosts:
            link.putheader("Host", host)
        link.endheaders()
        reply = link.getresponse()
        return reply.status, reply.read().decode()
    finally:
        link.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:80", socket.gethostname()])
def test_page_is_served_under_the_names_of_this_machine(page, host):
    assert answer(page, host)[0] == 200


@pytest.mark.parametrize(
    "hosts",
    [
        ("rebound.example",),
        ("rebound.example:80",),
        ("127.0.0.1.rebound.example",),
        ("localhost.rebound.example",),
        ("10.0.0.7",),
        ("",),
        (),
        ("localhost", "rebound.example"),
        ("[",),
        ("localhost@rebound.example",),
    ],
)
def test_foreign_host_name_for_this_machine_is_refused(page, hosts):
    for path in ("/", "/data.json"):
        code, said = answer(page, *hosts, path=path)
        assert code == 421 and "this page is served for 127.0.0.1" in said and "clicks" not in said


@pytest.mark.parametrize(
    ("asked", "host", "ours"),
    [
        ("10.0.0.7:8080", "0.0.0.0", True),
        ("[fe80::1]", "::", True),
        ("rebound.example", "0.0.0.0", False),
        ("train.example:80", "train.example", True),
        ("Train.Example", "train.example", True),
        ("10.0.0.7", "train.example", False),
        ("10.0.0.7", "10.0.0.7", True),
    ],
)
def test_public_page_is_served_under_its_name_and_addresses(asked, host, ours):
    assert dashboard.is_ours(asked, host, dashboard.names_of(host)) is ours


def test_port_in_use_is_reported(page):
    with pytest.raises(errors.BadInput, match=r"cannot listen on 127\.0\.0\.1"):
        dashboard.serve(lambda since: b"", host="127.0.0.1", port=int(page.rpartition(":")[2]))


@pytest.mark.parametrize(("length", "said"), [(0.31, "0.3 s"), (45.0, "45 s"), (210.0, "3.5 min"), (7560.0, "2.1 h")])
def test_durations_are_short(length, said):
    assert render.duration(length) == said


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.77"])
def test_invalid_host_is_not_blamed_on_the_port(host):
    with pytest.raises(errors.BadInput, match=f"--host {host}: not an address of this machine"):
        dashboard.serve(lambda since: b"", host=host, port=0)
