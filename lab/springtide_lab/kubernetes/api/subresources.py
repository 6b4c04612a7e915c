"""Requests to parts of objects that are more than a change: binding, eviction, tokens, and reviews of access.

In: the object named by the path, and the body. Out: what the server answers; pods change as these parts say.
"""

import copy
from collections.abc import Callable

from springtide_lab.kubernetes.api import rbac, status_errors
from springtide_lab.kubernetes.api.object_lifecycle import Lifecycle, stamp
from springtide_lab.kubernetes.api.paths import Target
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control import namespaces
from springtide_lab.kubernetes.objects.kinds import BUDGETS, PODS

TOKEN_S = 3600


class Parts:
    """Answers them. `clock` is the time of day in seconds."""

    def __init__(self, lifecycle: Lifecycle, tokens: rbac.Tokens, clock: Callable[[], float]) -> None:
        self._life, self._tokens, self._clock = lifecycle, tokens, clock

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
        if pod["metadata"].get("deletionTimestamp"):
            raise status_errors.conflict(
                "pods/binding", target.name, f"pod {target.name} is being deleted, cannot be assigned"
            )
        if pod["spec"].get("nodeName"):
            why = f"pod {target.name} is already assigned to node {pod['spec']['nodeName']!r}"
            raise status_errors.conflict("pods/binding", target.name, why)
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = node
        self._condition(bound, "PodScheduled", "True", "", "")
        self._life.store.put(PODS.resource, target.key, bound)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _evict(self, target: Target, pod: Json, body: Json) -> Json:
        store = self._life.store
        namespaces.refuse_disruption(pod, store.all(BUDGETS.resource, target.namespace))
        marked = copy.deepcopy(pod)
        if pod["spec"].get("nodeName"):
            why = "Eviction API: evicting"
            self._condition(marked, "DisruptionTarget", "True", "EvictionByEvictionAPI", why)
            store.put(PODS.resource, target.key, marked)
        self._life.delete(PODS, target.key, dict(body.get("deleteOptions") or {}))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _condition(self, pod: Json, kind: str, status: str, reason: str, message: str) -> None:
        conditions = [each for each in pod["status"].get("conditions") or [] if each["type"] != kind]
        entry = {"type": kind, "status": status, "lastTransitionTime": stamp(self._clock()), "lastProbeTime": None}
        entry |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
        pod["status"]["conditions"] = [*conditions, entry]

    def _token(self, target: Target, account: Json, body: Json) -> Json:
        seconds = (body.get("spec") or {}).get("expirationSeconds", TOKEN_S)
        token = self._tokens.of_account(target.namespace, target.name, account["metadata"]["uid"])
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": target.name, "namespace": target.namespace},
            "spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": stamp(self._clock() + seconds)},
        }

    def review(self, user: rbac.User, body: Json) -> Json:
        """Whether the one who asks may do a thing: `kubectl auth can-i`."""
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        part = asked.get("subresource", "")
        ask = rbac.Ask(
            verb=asked.get("verb", ""),
            group=asked.get("group", ""),
            resource=asked.get("resource", "") + (f"/{part}" if part else ""),
            namespace=asked.get("namespace", ""),
            name=asked.get("name", ""),
        )
        return {**body, "status": {"allowed": rbac.allowed(self._life.store, user, ask)}}
