"""Serve the API over HTTP: authentication, authorization, injected faults, then the verb.

In: requests. Out: objects, lists, watches, `Status` objects for refusals. `Parts` answers requests to the subresources
binding, eviction and token.
"""

import asyncio
import copy
import json
import time
from dataclasses import replace
from typing import Any

from aiohttp import ClientError, ClientSession, web

from springtide.platforms.k8s.api.kinds import timestamp
from springtide_lab.kubernetes.api import api_faults, object_store, rbac, status_errors
from springtide_lab.kubernetes.api.object_lifecycle import Lifecycle
from springtide_lab.kubernetes.api.object_store import Change, Feed, Store
from springtide_lab.kubernetes.api.paths import Registry, Target
from springtide_lab.kubernetes.api.status_errors import Json, Refused
from springtide_lab.kubernetes.control import reconcile
from springtide_lab.kubernetes.control.reconcile import Housekeeping
from springtide_lab.kubernetes.objects import patches, selectors
from springtide_lab.kubernetes.objects.admission import kinds_of
from springtide_lab.kubernetes.objects.kinds import BUDGETS, CRDS, NAMESPACES, NODES, PODS, RBAC

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# seconds between bookmarks; real servers send one per minute, so clients must not depend on this interval
BOOKMARK_S = 5.0
BODY = 16 * 1024 * 1024
TOKEN_S = 3600
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Api:
    """State and request handlers of one server, used in one event loop."""

    def __init__(self, ca: str) -> None:
        self.store = Store()
        self.registry = Registry()
        self.tokens = rbac.Tokens()
        self.faults = api_faults.Faults()
        self.life = Lifecycle(self.store)
        self.feeds: set[Feed] = set()
        self._parts = Parts(self.life, self.tokens)
        self.store.after_change += [self._learn, Housekeeping(self.life, self.registry, ca).after]
        for name in ("default", "kube-system", "kube-node-lease"):
            self.life.create(NAMESPACES, "", {"metadata": {"name": name}})

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY)
        app.router.add_route("*", "/{tail:.*}", self._serve)
        return app

    def drop_watches(self) -> None:
        """Break the connections of watches."""
        for feed in self.feeds:
            feed.drop()

    def _learn(self, resource: str, change: Change) -> None:
        if resource != CRDS.resource:
            return
        spec = change.now["spec"]
        if change.type == "DELETED":
            self.store.drop_resource(f"{spec['names']['plural']}.{spec['group']}")
        self.registry.forget(spec["group"], spec["names"]["plural"])
        if change.type != "DELETED":
            self.registry.define(kinds_of(change.now))

    # ---- one request ----

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refused as refused:
            headers = {}
            if refused.retry_after_s is not None:
                headers["Retry-After"] = str(max(1, round(refused.retry_after_s)))
            return web.json_response(refused.status(), status=refused.code, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        user = self.tokens.user(request.headers.get("Authorization", "").removeprefix("Bearer "), self.store)
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if request.method == "GET" and (said := self.registry.discovery(request.path)) is not None:
            return web.json_response(said)
        target = self.registry.target(request.path)
        verb = self._verb(request, target)
        if verb in ("list", "watch"):
            target = replace(target, name=selectors.chosen_name(request.query.get("fieldSelector", "")))
        resource = target.kind.plural + (f"/{target.part}" if target.part else "")
        ask = rbac.Ask(
            verb=verb, group=target.kind.group, resource=resource, namespace=target.namespace, name=target.name
        )
        if not rbac.allowed(self.store, user, ask):
            where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
            why = f'User "{user.name}" cannot {verb} resource "{resource}" in API group "{target.kind.group}" {where}'
            raise status_errors.forbidden(target.kind.resource, target.name, why)
        return await self._with_faults(request, target, verb, resource, user, await self._body(request))

    async def _with_faults(
        self, request: web.Request, target: Target, verb: str, resource: str, user: rbac.User, body: Any
    ) -> web.StreamResponse:
        found = self.faults.take(verb, resource)
        for fault in found:
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.code and not fault.after:
                raise fault.refusal()
        behind = max((fault.behind for fault in found), default=0)
        answer = await self._do(request, target, verb, user, body, behind)
        for fault in found:
            if fault.code and fault.after:
                raise fault.refusal()
        return answer

    async def _do(
        self, request: web.Request, target: Target, verb: str, user: rbac.User, body: Any, behind: int
    ) -> web.StreamResponse:
        kind = target.kind
        if target.part == "log":
            return await self._log(request, target)
        match verb:
            case "watch":
                return await self._watch(request, target)
            case "list":
                return web.json_response(object_store.listed(self.store, target, request.query, behind=behind))
            case "get":
                return web.json_response(self.life.need(kind, target.key))
            case "create" if target.part:
                return web.json_response(self._parts.create(target, body), status=201)
            case "create":
                self._refuse_escalation(user, target, body)
                return web.json_response(self.life.create(kind, target.namespace, body), status=201)
            case "update":
                self._refuse_escalation(user, target, body)
                return web.json_response(self.life.change(kind, target.key, body, part=target.part))
            case "patch":
                new = patches.apply(self.life.need(kind, target.key), body, request.content_type, kind)
                self._refuse_escalation(user, target, new)
                return web.json_response(self.life.change(kind, target.key, new, part=target.part))
        return web.json_response(self.life.delete(kind, target.key, body))

    # ---- verbs ----

    def _refuse_escalation(self, user: rbac.User, target: Target, body: Any) -> None:
        if target.kind.group != RBAC or user.may_all or not isinstance(body, dict):
            return
        rules = list(body.get("rules") or [])
        verb, resource = "escalate", target.kind.plural
        name = (body.get("metadata") or {}).get("name", "")
        if target.kind.plural.endswith("bindings"):
            reference = body["roleRef"]
            rules = rbac.rules_behind(self.store, reference, target.namespace)
            verb, resource, name = "bind", reference["kind"].lower() + "s", reference["name"]
        ask = rbac.Ask(verb=verb, group=RBAC, resource=resource, namespace=target.namespace, name=name)
        missing = rbac.beyond(self.store, user, rules, target.namespace)
        if missing and not rbac.allowed(self.store, user, ask):
            why = f'user "{user.name}" is attempting to grant RBAC permissions not currently held: {missing}'
            raise status_errors.forbidden(target.kind.resource, name, why)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            feed = Feed(self.store, target, request.query)
        except Refused as refused:
            if refused.code != 410:
                raise
            await response.prepare(request)
            await response.write(_line({"type": "ERROR", "object": refused.status()}))
            return response
        self.feeds.add(feed)
        try:
            await response.prepare(request)
            await self._stream(request, response, feed)
        except ConnectionError:
            pass  # the watching client has disconnected
        finally:
            self.feeds.discard(feed)
            feed.close()
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, feed: Feed) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(request.query["timeoutSeconds"])
        while (left := deadline - loop.time()) > 0:
            try:
                event = await asyncio.wait_for(feed.events.get(), min(left, BOOKMARK_S))
            except TimeoutError:
                feed.bookmark()
                continue
            if event is None:
                if request.transport is not None:
                    request.transport.abort()
                return
            await response.write(_line(event))

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self.life.need(PODS, target.key)
        node = self.store.get(NODES.resource, ("", pod["spec"].get("nodeName", "")))
        if node is None:
            raise status_errors.bad_request(f'pod "{target.name}" does not have a host assigned')
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        address = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://{address}:{port}/containerLogs/{target.namespace}/{target.name}/{container}"
        query = {key: value for key, value in request.query.items() if key != "container"}
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        try:
            async with ClientSession() as session, session.get(url, params=query, ssl=False) as answer:
                if answer.status >= 400:
                    raise Refused(answer.status, "BadRequest", (await answer.text()).strip())
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except (ClientError, ConnectionError) as error:
            if not response.prepared:
                raise Refused(500, "InternalError", f"Get {url}: {error}") from error
        return response

    # ---- reading ----

    def _verb(self, request: web.Request, target: Target) -> str:
        if request.method == "GET":
            if request.query.get("watch") == "true":
                return "watch"
            return "get" if target.name else "list"
        verb = VERBS.get(request.method)
        makes = verb == "create" and not target.part
        placed = bool(target.namespace) or not target.kind.namespaced
        if verb is None or bool(target.name) == makes or not placed:
            raise status_errors.not_allowed(request.method)
        return verb

    async def _body(self, request: web.Request) -> Any:
        text = await request.read()
        try:
            return json.loads(text) if text else {}
        except ValueError as error:
            raise status_errors.bad_request(f"the body cannot be read: {error}") from error


def _line(event: Json) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


class Parts:
    """Answer requests to the subresources `binding`, `eviction` and `token`."""

    def __init__(self, lifecycle: Lifecycle, tokens: rbac.Tokens) -> None:
        self._life, self._tokens = lifecycle, tokens

    def create(self, target: Target, body: Json) -> Json:
        item = self._life.need(target.kind, target.key)
        match target.part:
            case "binding":
                return self._bind(target, item, body)
            case "eviction":
                return self._evict(target, item, body)
            case "token":
                return self._token(target, item, body)
        raise status_errors.not_allowed("POST")

    def _bind(self, target: Target, pod: Json, body: Json) -> Json:
        node = (body.get("target") or {}).get("name", "")
        if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("nodeName"):
            why = f"pod {target.name} is being deleted, or already assigned to a node"
            raise status_errors.conflict("pods/binding", target.name, why)
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = node
        self._condition(bound, "PodScheduled")
        self._life.store.put(PODS.resource, target.key, bound)
        return SUCCESS

    def _evict(self, target: Target, pod: Json, body: Json) -> Json:
        store = self._life.store
        reconcile.refuse_disruption(pod, store.all(BUDGETS.resource, target.namespace))
        marked = copy.deepcopy(pod)
        if pod["spec"].get("nodeName"):
            self._condition(
                marked, "DisruptionTarget", reason="EvictionByEvictionAPI", message="Eviction API: evicting"
            )
            store.put(PODS.resource, target.key, marked)
        self._life.delete(PODS, target.key, dict(body.get("deleteOptions") or {}))
        return SUCCESS

    def _condition(self, pod: Json, kind: str, **more: str) -> None:
        conditions = [each for each in pod["status"].get("conditions") or [] if each["type"] != kind]
        entry = {"type": kind, "status": "True", "lastTransitionTime": timestamp(time.time()), **more}
        pod["status"]["conditions"] = [*conditions, entry]

    def _token(self, target: Target, account: Json, body: Json) -> Json:
        seconds = (body.get("spec") or {}).get("expirationSeconds", TOKEN_S)
        token = self._tokens.of_account(target.namespace, target.name, account["metadata"]["uid"])
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": target.name, "namespace": target.namespace},
            "spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": timestamp(time.time() + seconds)},
        }
