"""Who may use the dashboard: host names, the token, and orders to jobs."""

import socket

import pytest

from springtide.dashboard import access
from tests.unit.dashboard.web import TOKEN, application, ask


@pytest.fixture
def page(tmp_path):
    return application(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:80", socket.gethostname()])
def test_page_is_served_under_the_names_of_this_machine(page, host):
    assert ask(page, "/api/info", hosts=[host]).status == 200


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
    for path in ("/", "/api/jobs"):
        refused = ask(page, path, hosts=hosts)
        assert refused.status == 421 and "this page is served for 127.0.0.1" in refused.json["error"]


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
    assert access.is_ours(asked, host, access.names_of(host)) is ours


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "ü"])
def test_request_without_the_token_learns_nothing(page, token):
    for path in ("/api/info", "/api/jobs", "/api/jobs/train/live", "/api/openapi.json"):
        refused = ask(page, path, token=token)
        assert refused.status == 401 and "open the URL" in refused.json["error"]


def test_page_loads_nothing_from_other_places(page):
    headers = ask(page, "/").headers
    assert "default-src 'none'" in headers["content-security-policy"] and headers["referrer-policy"] == "no-referrer"


def test_read_only_dashboard_refuses_orders(page):
    refused = ask(page, "/api/jobs/train/stop", method="POST")
    assert refused.status == 403 and "--allow-control" in refused.json["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999"])
def test_order_from_another_page_is_refused(tmp_path, origin):
    with_control = application(tmp_path, control=True)
    refused = ask(with_control, "/api/jobs/train/stop", method="POST", origin=origin)
    assert refused.status == 403 and "another page" in refused.json["error"]
    assert ask(with_control, "/api/jobs/train/stop", method="POST", token="", origin=origin).status == 401


def test_order_from_the_dashboards_page_reaches_the_job(tmp_path):
    with_control = application(tmp_path, control=True)
    reply = ask(with_control, "/api/jobs/train/stop", method="POST", origin="http://127.0.0.1:8470")
    assert reply.status == 404 and "no jobs in" in reply.json["error"]
