"""The web application: answers the API's endpoints, streams live updates, and serves the built front end."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from springtide import errors
from springtide.dashboard import openapi
from springtide.dashboard.access import AccessCheck, AccessRules
from springtide.dashboard.documents import ApiError, LiveUpdate
from springtide.dashboard.endpoints import ENDPOINTS, ApiCall, DashboardSources, Endpoint
from springtide.platforms.agent.job_handle import JobHandle

STATIC = pathlib.Path(__file__).with_name("static")
EVERY_S = 1.0  # seconds between two live updates
NOT_BUILT = (
    "The dashboard's page is not built: install Node.js 20 or newer and run `make dashboard` in the repository, or "
    "install a wheel of Springtide, which contains the page."
)


def build(sources: DashboardSources, rules: AccessRules) -> ASGIApp:
    routes = [Route(endpoint.path, _answer(endpoint, sources), methods=[endpoint.method]) for endpoint in ENDPOINTS]
    routes += [
        Route("/api/jobs/{job}/live", _live(sources)),
        Route("/api/openapi.json", lambda _: _json(openapi.description())),
        Route("/api/{path:path}", lambda _: _json(ApiError(error="no such path; see /api/openapi.json"), 404)),
        Route("/{path:path}", _static),
    ]
    return AccessCheck(Starlette(routes=routes), rules)


def _json(found: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status, media_type="application/json")


def _answer(endpoint: Endpoint, sources: DashboardSources):  # type: ignore[no-untyped-def]  # Starlette wants a function
    async def answer(request: Request) -> Response:
        call = ApiCall(sources, request.path_params, request.query_params, await request.body())
        try:
            return _json(await run_in_threadpool(endpoint.call, call))
        except errors.SpringtideError as error:
            return _json(ApiError(error=str(error)), status_of(error))

    return answer


def status_of(error: errors.SpringtideError) -> int:
    if isinstance(error, errors.MissingFile | errors.UnknownName):
        return 404
    return 400 if isinstance(error, errors.UserError) else 503


def _live(sources: DashboardSources):  # type: ignore[no-untyped-def]
    async def live(request: Request) -> Response:
        try:
            handle = await run_in_threadpool(sources.reader.find, request.path_params["job"])
        except errors.SpringtideError as error:
            return _json(ApiError(error=str(error)), status_of(error))
        return StreamingResponse(_updates(sources, handle), media_type="text/event-stream")

    return live


async def _updates(sources: DashboardSources, handle: JobHandle) -> AsyncIterator[bytes]:
    """Yield everything about a job first, and then each second what is new. End after the job's last update."""
    since, after = 0.0, -1
    while True:
        update = await run_in_threadpool(_update, sources, handle, since, after)
        times = [[point.at for point in points] for points in (update.history.progress, update.history.online)]
        since = max(since, *(max(some, default=0.0) for some in times))
        after = update.events[-1].number if update.events else after
        yield b"data: " + msgspec.json.encode(update) + b"\n\n"
        if not update.page.running:
            yield b"event: end\ndata: {}\n\n"
            return
        await asyncio.sleep(EVERY_S)


def _update(sources: DashboardSources, handle: JobHandle, since: float, after: int) -> LiveUpdate:
    reader = sources.reader
    page = reader.page(handle)
    return LiveUpdate(
        page=page, history=reader.history(handle, since), events=reader.events(handle, after).events, whole=after < 0
    )


def is_built() -> bool:
    return (STATIC / "index.html").is_file()


async def _static(request: Request) -> Response:
    path = request.path_params["path"] or "index.html"
    if not is_built():
        return PlainTextResponse(f"{NOT_BUILT}\n", 503)
    file = (STATIC / path).resolve()
    if not file.is_relative_to(STATIC.resolve()) or not file.is_file():
        return PlainTextResponse("there is no such page\n", 404)
    return FileResponse(file)
