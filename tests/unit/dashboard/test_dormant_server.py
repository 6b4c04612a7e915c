"""The dashboard of a run: a socket at first, a server after the first connection."""

import asyncio
import urllib.request

import pytest

from springtide import errors
from springtide.dashboard import page_socket
from springtide.dashboard.dormant_server import DormantServer
from tests.unit.cli.show.test_status import FINISHED, folder, make_past_run  # noqa: F401 - folder is a fixture


@pytest.mark.process
def test_first_visitor_of_a_run_starts_its_dashboard(folder):  # noqa: F811
    files = make_past_run(folder, "good", began_at=1.0, status=FINISHED)

    async def visit():
        async with DormantServer(files, 0) as dashboard:
            assert dashboard._process is None and not (files.logs / "dashboard.log").exists()
            url, _, token = dashboard.url.partition("#")
            request = urllib.request.Request(url + "api/info", headers={"Authorization": f"Bearer {token}"})
            return await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=120).read())

    assert b'"job":"good"' in asyncio.run(visit())


def test_unvisited_run_starts_no_server(folder):  # noqa: F811
    files = make_past_run(folder, "good", began_at=1.0, status=FINISHED)

    async def run():
        async with DormantServer(files, 0) as dashboard:
            return dashboard._process

    assert asyncio.run(run()) is None and not (files.logs / "dashboard.log").exists()


def test_port_in_use_is_reported():
    with (
        page_socket.listen("127.0.0.1", 0) as first,
        pytest.raises(errors.BadInput, match=r"--port \d+: cannot listen on 127\.0\.0\.1"),
    ):
        page_socket.listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.77"])
def test_invalid_host_is_not_blamed_on_the_port(host):
    with pytest.raises(errors.BadInput, match=f"--host {host}: not an address of this machine"):
        page_socket.listen(host, 0)


def test_url_carries_the_token_where_no_server_sees_it():
    with page_socket.listen("127.0.0.1", 0) as listener:
        url = page_socket.url_of(listener, "abc")
    assert url == f"http://127.0.0.1:{url.split(':')[2].split('/')[0]}/#abc"
