"""Client of the Kubernetes API: get, list, create, update, patch, delete, watch, logs. Objects are plain dicts.

Failures are errors of `springtide.errors`. If a request may have been carried out, the client repeats it only if a
second execution is harmless. `platforms.k8s.api.kubeconfig` finds the server and the credentials.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import msgspec

from springtide import errors
from springtide.platforms.k8s.api import kubeconfig as access
from springtide.platforms.k8s.api.kinds import PODS, Object, ObjectKind, key_of

BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses of an overloaded or failing server. After a 429, the server has not processed the request. After any
other of these statuses, the server may have processed the request.
"""
GONE = 410
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0

log = logging.getLogger(__name__)
WITHIN_S = 30.0  # seconds in which to retry; a restarting API server is back sooner
ONE_TRY_S = 10.0  # seconds to wait for one reply, so that a dead connection delays a caller by at most this time
GOODBYE_S = 0.05
PAGE = 500
Result = TypeVar("Result")
How = Literal["merge", "strategic"]
PATCHES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}
LASTS_S = 60  # duration of one watch request in seconds; after this time, a silently broken connection is noticed
SLACK_S = 10.0
What = Literal["added", "changed", "gone", "synced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error reply of the server, or a broken connection."""

    status: int
    """HTTP status; 0 without a reply."""
    message: str = ""
    reason: str = ""
    after_s: float | None = None
    """Seconds until a retry, if the server requests a delay."""
    begun: bool = True
    """True if the server may have carried out the request."""


def read_refusal(status: int, body: bytes, retry_after: str | None = None) -> Refusal:
    """Parse an error reply. Usually it is a `Status` object, but a proxy may send anything."""
    answer: Any = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        answer = msgspec.json.decode(body)
    if not isinstance(answer, dict):
        answer = {"message": body.decode(errors="replace").strip()[:300]}
    after = retry_after if retry_after is not None else (answer.get("details") or {}).get("retryAfterSeconds")
    try:
        after_s = None if after is None else float(after)
    except ValueError:  # the header contains a date
        after_s = None
    return Refusal(
        status=status,
        message=answer.get("message") or f"HTTP {status}",
        reason=answer.get("reason") or "",
        after_s=after_s,
        begun=status != 429,
    )


def retry_pause(refusal: Refusal, attempt: int, *, repeatable: bool) -> float | None:
    """Return the seconds until the next attempt; None means to give up the request.

    A request that is not `repeatable` is retried only if the server cannot have begun it.
    """
    if refusal.status and refusal.status not in BUSY:
        return None
    if refusal.begun and not repeatable:
        return None
    waits: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
    return waits if refusal.after_s is None else max(waits, refusal.after_s)


def error_of(refusal: Refusal, what: str, server: str) -> errors.SpringtideError:
    text = refusal.message
    match refusal.status:
        case 0:
            done = "" if not refusal.begun else " The cluster may or may not have carried out the request."
            return errors.ClusterUnreachable(
                f"cannot {what}: the Kubernetes API at {server} does not answer ({text}).{done} "
                "Check that the address is right, that the cluster runs, and that no firewall is between"
            )
        case 404:
            return errors.NotFound(f"cannot {what}: {text}")
        case 409:
            kind = errors.AlreadyThere if refusal.reason == "AlreadyExists" else errors.Conflict
            return kind(f"cannot {what}: {text}")
        case 410:
            return errors.Conflict(f"cannot {what}: {text}")
        case 401:
            return errors.Forbidden(
                f"cannot {what}: {server} does not know this user ({text}); log in to the cluster again"
            )
        # a quota or a policy refused the request, so no permission is missing
        case 403 if "is forbidden: " in text and 'resource "' not in text:
            return errors.ClusterRefused(f"cannot {what}: {text}")
        case 403:
            return errors.Forbidden(
                f"cannot {what}: {text}. An administrator of the cluster must grant this permission with a Role and a "
                f"RoleBinding; "
                "`springtide k8s install --dry-run` prints the permissions that Springtide needs"
            )
        case status if status in BUSY:
            return errors.ClusterUnreachable(f"cannot {what}: the Kubernetes API at {server} says {status}: {text}")
    return errors.ClusterRefused(f"cannot {what}: {text}")


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A change of an object. `synced` means that all existing objects have been reported."""

    what: What
    thing: Object


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind, with the version from which a watch can continue."""

    items: list[Object]
    version: str


class Client:
    """Client of one API server with one identity. Use the client within one event loop, and close it."""

    def __init__(self, reached: access.Access, *, namespace: str = "", within_s: float = WITHIN_S) -> None:
        try:
            import aiohttp
        except ImportError:
            raise errors.MissingExtra("Kubernetes", "k8s") from None
        self._http = aiohttp
        self.access = reached
        self.namespace = namespace or reached.namespace
        self._within_s = within_s
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self._chance = random.Random()

    @classmethod
    def open(cls, kubeconfig: str = "", context: str = "", namespace: str = "") -> Self:
        return cls(access.find(kubeconfig, context), namespace=namespace)

    @classmethod
    def at(cls, where: Mapping[str, str]) -> Self:
        """Return a client for the options `kubeconfig`, `context` and `namespace` of a job's location."""
        return cls.open(where.get("kubeconfig", ""), where.get("context", ""), where.get("namespace", ""))

    async def close(self) -> None:
        """Close all connections, and wait briefly for the end of TLS, because aiohttp does not wait."""
        await self._session.close()
        if self.access.server.startswith("https"):
            await asyncio.sleep(GOODBYE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- objects ----

    async def get(self, kind: ObjectKind, name: str, *, namespace: str = "") -> Object:
        path = kind.path(self._space(kind, namespace), name)
        return await self._ask("GET", path, f"get {kind} {name}")

    async def list(
        self, kind: ObjectKind, *, namespace: str = "", labels: str = "", fields: str = "", everywhere: bool = False
    ) -> Listing:
        path = kind.path("" if everywhere else self._space(kind, namespace))
        query = selectors(labels, fields) | {"limit": str(PAGE)}
        items: list[Object] = []
        while True:
            page = await self._ask("GET", path, f"list {kind}", query=query)
            items += page.get("items") or []
            if not (following := page["metadata"].get("continue")):
                for item in items:  # add kind and version, which the API omits in lists
                    item.setdefault("apiVersion", kind.api)
                    item.setdefault("kind", kind.kind)
                return Listing(items, page["metadata"].get("resourceVersion", ""))
            query["continue"] = following

    async def create(self, kind: ObjectKind, body: Object, *, namespace: str = "") -> Object:
        """Create an object. Raise `AlreadyThere` if an object of this name exists."""
        space = self._space(kind, namespace or body["metadata"].get("namespace", ""))
        name = body["metadata"].get("name", "")
        return await self._ask("POST", kind.path(space), f"create {kind} {name}", body=body, repeatable=False)

    async def update(self, kind: ObjectKind, body: Object, *, subresource: str = "") -> Object:
        """Replace an object. Raise `Conflict` if the object has changed since it was read."""
        space, name = self._space(kind, body["metadata"].get("namespace", "")), body["metadata"]["name"]
        return await self._ask("PUT", kind.path(space, name, subresource), f"update {kind} {name}", body=body)

    async def patch(
        self,
        kind: ObjectKind,
        name: str,
        body: Object,
        *,
        namespace: str = "",
        subresource: str = "",
        how: How = "merge",
    ) -> Object:
        """Patch an object. If `metadata.resourceVersion` is set and the object has changed since, raise `Conflict`."""
        path = kind.path(self._space(kind, namespace), name, subresource)
        part = f" ({subresource})" if subresource else ""
        return await self._ask("PATCH", path, f"patch {kind} {name}{part}", body=body, content=PATCHES[how])

    async def delete(
        self,
        kind: ObjectKind,
        name: str,
        *,
        namespace: str = "",
        grace_s: int | None = None,
        propagation: str = "",
        uid: str = "",
    ) -> None:
        """Delete an object if it still has this `uid`. Raise `NotFound` if the object does not exist."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if propagation:
            body["propagationPolicy"] = propagation
        if uid:
            body["preconditions"] = {"uid": uid}
        path = kind.path(self._space(kind, namespace), name)
        await self._ask("DELETE", path, f"delete {kind} {name}", body=body)

    async def post(
        self,
        kind: ObjectKind,
        name: str,
        subresource: str,
        body: Object,
        *,
        namespace: str = "",
        within_s: float | None = None,
    ) -> Object:
        path, what = kind.path(self._space(kind, namespace), name, subresource), f"post {kind} {name} ({subresource})"
        return await self._ask("POST", path, what, body=body, repeatable=False, within_s=within_s)

    # ---- operations of the API ----

    async def version(self) -> str:
        return str((await self._ask("GET", "/version", "ask for the version")).get("gitVersion", ""))

    async def has(self, kind: ObjectKind, subresource: str = "") -> bool:
        base = kind.path().rpartition("/")[0]
        try:
            known = await self._ask("GET", base, f"ask for the kinds of {kind.api}")
        except errors.NotFound:
            return False
        wanted = f"{kind.plural}/{subresource}" if subresource else kind.plural
        return any(resource["name"] == wanted for resource in known.get("resources") or [])

    # ---- streams ----

    async def watch(
        self, kind: ObjectKind, *, namespace: str = "", labels: str = "", fields: str = "", everywhere: bool = False
    ) -> AsyncIterator[ObjectChange]:
        """Yield all existing objects, then `synced`, and then every change, without end. Raise errors that only a
        person can fix.

        After a broken connection, the watch resumes. After a 410, the objects are listed again, and differences are
        reported as changes.
        """
        known, synced, since, failures = KnownObjects(), False, "", 0
        path = kind.path("" if everywhere else self._space(kind, namespace))
        query = selectors(labels, fields)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(LASTS_S)}
        silence_s = LASTS_S + SLACK_S
        while True:
            try:
                if not since:
                    found = await self.list(
                        kind, namespace=namespace, labels=labels, fields=fields, everywhere=everywhere
                    )
                    for change in known.relisted(found.items):
                        yield change
                    since = found.version
                    if not synced:
                        yield ObjectChange("synced", {})
                        synced = True
                # the first line that arrives resets the backoff, so that a server that ends every watch immediately
                # gets fewer and fewer requests
                failures += 1
                lines = self.stream(path, f"watch {kind}", query | {"resourceVersion": since}, silence_s=silence_s)
                async for line in lines:
                    event, since = parse_event(line, since)
                    failures = 0
                    for change in known.apply(*event):
                        yield change
            except errors.Conflict:  # 410: the server has forgotten this version, so list the objects again
                log.info("the server no longer has %s of %s: all objects are read again", since, kind)
                since = ""
            except errors.ClusterUnreachable as error:
                log.info("a watch of %s continues: %s", kind, error)
                failures = max(failures, 1)
            if failures:
                await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10)))

    async def logs(
        self, pod: str, *, container: str = "", lines: int | None = None, follow: bool = False
    ) -> AsyncIterator[str]:
        query = {"follow": "true"} if follow else {}
        query |= {"container": container} if container else {}
        query |= {"tailLines": str(lines)} if lines is not None else {}
        path = PODS.path(self.namespace, pod, "log")
        async for line in self.stream(path, f"read the log of pod {pod}", query, silence_s=None):
            yield line.decode(errors="replace")

    async def stream(
        self, path: str, what: str, query: Mapping[str, str], *, silence_s: float | None
    ) -> AsyncIterator[bytes]:
        timeout = self._http.ClientTimeout(total=None, sock_connect=ONE_TRY_S, sock_read=silence_s)
        for anew in (False, True):
            try:
                headers = await self.access.headers(anew=anew)
                async with self._request("GET", path, query, timeout=timeout, headers=headers) as response:
                    if response.status == 401 and not anew:
                        continue  # the token may have expired
                    if response.status >= 400:
                        raise self._error(read_refusal(response.status, await response.read()), what)
                    rest = b""
                    async for chunk in response.content.iter_any():
                        *whole, rest = (rest + chunk).split(b"\n")
                        for line in whole:
                            yield line
                    if rest:
                        yield rest
                    return
            except (self._http.ClientError, TimeoutError, OSError) as error:
                raise self._error(Refusal(status=0, message=worded(error)), what) from None

    # ---- one request ----

    async def _ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        repeatable: bool = True,
        within_s: float | None = None,
    ) -> Object:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._within_s if within_s is None else within_s)
        data = None if body is None else msgspec.json.encode(body)
        attempt, anew = 0, False
        while True:
            refusal, answer = await self._try(method, path, query or {}, data, content, anew=anew)
            if refusal is None:
                return answer
            if refusal.status == 401 and not anew:
                anew = True  # the token may have expired
                continue
            wait_s = retry_pause(refusal, attempt, repeatable=repeatable)
            if wait_s is None or loop.time() + wait_s > deadline:
                raise self._error(refusal, what)
            attempt, anew = attempt + 1, False
            await asyncio.sleep(wait_s * self._chance.uniform(0.8, 1.2))

    async def _try(
        self, method: str, path: str, query: Mapping[str, str], data: bytes | None, content: str, *, anew: bool
    ) -> tuple[Refusal | None, Object]:
        headers = await self.access.headers(anew=anew)
        if data is not None:
            headers["Content-Type"] = content
        try:
            timeout = self._http.ClientTimeout(total=ONE_TRY_S)
            async with self._request(method, path, query, data=data, headers=headers, timeout=timeout) as response:
                body = await response.read()
                if response.status >= 400:
                    return read_refusal(response.status, body, response.headers.get("Retry-After")), {}
                return None, msgspec.json.decode(body) if body else {}
        except self._http.ClientConnectorError as error:
            return Refusal(status=0, message=worded(error), begun=False), {}
        except (self._http.ClientError, TimeoutError, OSError) as error:
            return Refusal(status=0, message=worded(error)), {}
        except msgspec.DecodeError:
            return Refusal(status=0, message="its answer is not JSON"), {}

    def _request(self, method: str, path: str, query: Mapping[str, str], **more: Any) -> Any:
        reached = self.access
        more |= {"ssl": reached.verify, "server_hostname": reached.server_name, "proxy": reached.proxy}
        return self._session.request(method, reached.server + path, params=dict(query), **more)

    def _error(self, refusal: Refusal, what: str) -> errors.SpringtideError:
        return error_of(refusal, f"{what} ({self.access.where})", self.access.server)

    def _space(self, kind: ObjectKind, namespace: str) -> str:
        return (namespace or self.namespace) if kind.namespaced else ""


def selectors(labels: str, fields: str) -> dict[str, str]:
    return ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})


def worded(error: BaseException) -> str:
    return str(error) or type(error).__name__


@dataclass(slots=True)
class KnownObjects:
    """Objects that the reader of a watch knows. Pure."""

    things: dict[tuple[str, str], Object] = field(default_factory=dict)

    def relisted(self, items: Iterable[Object]) -> list[ObjectChange]:
        now = {key_of(item): item for item in items}
        removed = [ObjectChange("gone", self.things.pop(key)) for key in self.things.keys() - now.keys()]
        for item in now.values():
            removed += self.seen(item)
        return removed

    def seen(self, thing: Object) -> list[ObjectChange]:
        key = key_of(thing)
        before = self.things.get(key)
        self.things[key] = thing
        if before is None:
            return [ObjectChange("added", thing)]
        if identity(before) != identity(thing):
            return [ObjectChange("gone", before), ObjectChange("added", thing)]
        same = version(before) == version(thing) != ""
        return [] if same else [ObjectChange("changed", thing)]

    def apply(self, what: str, thing: Object) -> list[ObjectChange]:
        if what not in ("BOOKMARK", "DELETED"):
            return self.seen(thing)
        before = self.things.get(key_of(thing))
        if what == "BOOKMARK" or before is None or identity(before) != identity(thing):
            return []
        del self.things[key_of(thing)]
        return [ObjectChange("gone", thing)]


def identity(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("uid", ""))


def version(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("resourceVersion", ""))


def parse_event(line: bytes, since: str) -> tuple[tuple[str, Object], str]:
    try:
        event = msgspec.json.decode(line)
        what, thing = event["type"], event["object"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise errors.ClusterUnreachable(f"a watch has sent an invalid event: {line[:80]!r}") from None
    if what == "ERROR":
        if thing.get("code") == GONE:
            raise errors.Conflict("the server no longer knows the version to resume from")
        raise errors.ClusterUnreachable(f"a watch has ended: {thing.get('message', thing)}")
    return (what, thing), version(thing) or since


def with_client(where: Mapping[str, str], work: Callable[[Client], Awaitable[Result]]) -> Result:
    async def within() -> Result:
        async with Client.at(where) as client:
            return await work(client)

    return asyncio.run(within())
