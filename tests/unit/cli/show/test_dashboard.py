"""The dashboard: its page, its data, and the host names under which it is served."""

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request

import pytest

from springtide import errors
from springtide.cli.show import dashboard
from springtide.cli.show.dashboard import DashboardData
from springtide.domain.spec.online_job import OnlinePoint
from springtide.telemetry import logs
from springtide.telemetry.events import Series
from tests.unit.cli.show.test_status import folder, make_past_run  # noqa: F401 - folder is a fixture
from tests.unit.cli.show.test_stream_status import ENDED


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


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.77"])
def test_invalid_host_is_not_blamed_on_the_port(host):
    with pytest.raises(errors.BadInput, match=f"--host {host}: not an address of this machine"):
        dashboard.serve(lambda since: b"", host=host, port=0)
