"""Create, change and delete objects by the server's rules; only the server writes most of `metadata`.

In: requests that `http` has read and authorized. Out: objects in `object_store`. `admission` fills in defaults and
refuses faulty objects by kind. Every change compares versions (409 if they differ). The status changes only through its
own path. Finalizers delay the removal of an object.
"""

import copy
import secrets
import string
import time
import uuid
from typing import Any

from springtide.platforms.k8s.api.kinds import timestamp
from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Key, Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import admission, schema
from springtide_lab.kubernetes.objects.kinds import FOREGROUND, NAMESPACES, Kind

LETTERS = "".join(sorted(set(string.ascii_lowercase + string.digits) - set("aeiou013l")))
OWN_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


class Lifecycle:
    """Change the store by the rules of a real server."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        item = self._shaped(kind, namespace, body)
        meta = item["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(secrets.choice(LETTERS) for _ in range(5))
        wrong = list(admission.name_faults(kind, meta))
        if wrong:
            raise status_errors.invalid(kind.resource, meta.get("name", ""), wrong)
        key = (namespace, meta["name"])
        self._check_namespace(kind, key)
        if self.store.get(kind.resource, key) is not None:
            raise status_errors.Refused(409, "AlreadyExists", f'{kind.resource} "{meta["name"]}" already exists')
        if meta.pop("resourceVersion", None):
            raise status_errors.bad_request("resourceVersion should not be set on objects to be created")
        for name in OWN_METADATA:
            meta.pop(name, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp(time.time())
        if kind.counted:
            meta["generation"] = 1
        if kind.has_status:
            item.pop("status", None)
        item = admission.admit_new(self.store, kind, item)
        self._validate(kind, item, None)
        return self.store.put(kind.resource, key, item)

    def change(self, kind: Kind, key: Key, body: Json, *, part: str = "") -> Json:
        """Replace an object, or only its status, or only the resources of a pod."""
        old = self.need(kind, key)
        new = self._shaped(kind, key[0], body)
        given, meta = new["metadata"], old["metadata"]
        if given.get("name", key[1]) != key[1]:
            raise status_errors.bad_request(
                f"the name of the object ({given.get('name')}) does not match the URL ({key[1]})"
            )
        if given.get("uid", meta["uid"]) != meta["uid"]:
            why = f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {meta['uid']}"
            raise status_errors.conflict(kind.resource, key[1], why)
        if given.get("resourceVersion") and given["resourceVersion"] != meta["resourceVersion"]:
            raise status_errors.conflict(kind.resource, key[1])
        new = self._merged(kind, old, new, part)
        if part == "" and meta.get("deletionTimestamp"):
            added = set(new["metadata"].get("finalizers") or []) - set(meta.get("finalizers") or [])
            if added:
                fault = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted"
                raise status_errors.invalid(kind.resource, key[1], [fault])
        new = admission.admit_change(kind, new, old, part)
        self._validate(kind, new, old)
        if self._counts(kind, new, old):
            new["metadata"]["generation"] = meta.get("generation", 0) + 1
        if _same(new, old):
            return old
        if meta.get("deletionTimestamp") and self._may_go(kind, new):
            return self.store.drop(kind.resource, key, new)
        return self.store.put(kind.resource, key, new)

    def delete(self, kind: Kind, key: Key, options: Json) -> Json:
        """Mark an object for deletion, or remove it."""
        old = self.need(kind, key)
        meta = old["metadata"]
        for name, found in (options.get("preconditions") or {}).items():
            if found is not None and meta.get(name) != found:
                why = f"Precondition failed: {name} in precondition: {found}, in object meta: {meta.get(name)}"
                raise status_errors.conflict(kind.resource, key[1], why)
        grace = admission.grace_of(kind, old, options.get("gracePeriodSeconds"))
        new = copy.deepcopy(old)
        left = list(meta.get("finalizers") or [])
        if options.get("propagationPolicy") == "Foreground" and FOREGROUND not in left:
            new["metadata"]["finalizers"] = left = [*left, FOREGROUND]
        if not left and grace == 0 and kind is not NAMESPACES:
            return self.store.drop(kind.resource, key)
        already = meta.get("deletionGracePeriodSeconds")
        if already is None or grace < already:
            new["metadata"]["deletionTimestamp"] = timestamp(time.time() + grace)
            new["metadata"]["deletionGracePeriodSeconds"] = grace
            if kind.counted:
                new["metadata"]["generation"] = meta.get("generation", 0) + 1
        if kind is NAMESPACES:
            new["status"] = {**new.get("status", {}), "phase": "Terminating"}
        return old if _same(new, old) else self.store.put(kind.resource, key, new)

    def need(self, kind: Kind, key: Key) -> Json:
        """Return an object; raise Refused (404) if it does not exist."""
        found = self.store.get(kind.resource, key)
        if found is None:
            raise status_errors.not_found(kind.resource, key[1])
        return found

    def _shaped(self, kind: Kind, namespace: str, body: Any) -> Json:
        if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
            raise status_errors.bad_request("the body must be an object with metadata")
        if body.get("kind", kind.kind) != kind.kind or body.get("apiVersion", kind.api_version) != kind.api_version:
            raise status_errors.bad_request(f"the object in the body is not a {kind.api_version}, Kind={kind.kind}")
        item: Json = {"apiVersion": kind.api_version, "kind": kind.kind, **copy.deepcopy(body)}
        meta = item.setdefault("metadata", {})
        if kind.namespaced:
            if meta.get("namespace", namespace) != namespace:
                raise status_errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            meta["namespace"] = namespace
        else:
            meta.pop("namespace", None)
        if kind.schema is not None:
            pruned = schema.fill(schema.prune(item, kind.schema, root=True), kind.schema)
            item = dict(pruned)
        return item

    def _merged(self, kind: Kind, old: Json, new: Json, part: str) -> Json:
        if part in ("status", "resize"):
            merged = copy.deepcopy(old)
            taken = "status" if part == "status" else "spec"
            if taken in new:
                merged[taken] = new[taken]
            else:
                merged.pop(taken, None)
            return merged
        merged = {**new, "metadata": {**new["metadata"]}}
        if kind.has_status:
            merged.pop("status", None)
            if "status" in old:
                merged["status"] = old["status"]
        merged["metadata"].pop("resourceVersion", None)
        for name in OWN_METADATA:
            merged["metadata"].pop(name, None)
            if name in old["metadata"]:
                merged["metadata"][name] = old["metadata"][name]
        merged["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return merged

    def _validate(self, kind: Kind, item: Json, old: Json | None) -> None:
        wrong = list(admission.faults(kind, item, old))
        if kind.schema is not None:
            body = {key: value for key, value in item.items() if key not in schema.KEPT_AT_ROOT}
            root = {**kind.schema, "required": [each for each in kind.schema.get("required", []) if each != "metadata"]}
            wrong += schema.faults(body, root)
        if wrong:
            raise status_errors.invalid(kind.resource, item["metadata"]["name"], wrong)

    def _check_namespace(self, kind: Kind, key: Key) -> None:
        if not kind.namespaced:
            return
        namespace = self.store.get("namespaces", ("", key[0]))
        if namespace is None:
            raise status_errors.not_found("namespaces", key[0])
        if namespace["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {key[0]} because it is being terminated"
            raise status_errors.forbidden(kind.resource, key[1], why)

    def _counts(self, kind: Kind, new: Json, old: Json) -> bool:
        apart = {"metadata", "status"} if kind.has_status else {"metadata"}
        return kind.counted and _without(new, apart) != _without(old, apart)

    def _may_go(self, kind: Kind, item: Json) -> bool:
        if kind is NAMESPACES:
            return False
        left = item["metadata"].get("finalizers") or []
        return not left and item["metadata"].get("deletionGracePeriodSeconds", 0) == 0


def _without(item: Json, keys: set[str]) -> Json:
    return {key: value for key, value in item.items() if key not in keys}


def _same(new: Json, old: Json) -> bool:
    metadata = [_without(each["metadata"], {"resourceVersion"}) for each in (new, old)]
    return metadata[0] == metadata[1] and _without(new, {"metadata"}) == _without(old, {"metadata"})
