"""Requests to the dashboard's application, without a socket."""

import asyncio
import json
from typing import Any, NamedTuple

from springtide.dashboard import app
from springtide.dashboard.access import AccessRules
from springtide.dashboard.endpoints import DashboardSources
from springtide.dashboard.job_reader import JobReader
from springtide.launch.job_lookup import JobLocation

TOKEN = "a-token-for-tests"


class WebReply(NamedTuple):
    """A reply of the application."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def application(folder, *, host="127.0.0.1", control=False):
    sources = DashboardSources(JobReader(JobLocation(folder=str(folder))), "", control)
    return app.build(sources, AccessRules(host=host, token=TOKEN, control=control))


def ask(application, path, *, method="GET", token=TOKEN, hosts=("127.0.0.1:8470",), body=b"", **headers) -> WebReply:
    path, _, query = path.partition("?")
    named = [("host", host) for host in hosts] + [(name, value) for name, value in headers.items()]
    named += [("authorization", f"Bearer {token}")] if token else []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8470),
        "scheme": "http",
        "root_path": "",
    }
    sent = []

    async def exchange():
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if given:
                return given.pop()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await application(scope, receive, send)

    asyncio.run(exchange())
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return WebReply(sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, content)
