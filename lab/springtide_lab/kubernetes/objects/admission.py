"""Fill in defaults of objects and refuse faulty objects, by kind: pods, definitions, services and others.

In: an object before it is stored. Out: the object with its defaults, or a list of its faults. For a definition, also
its `Kind`s, one for each served version.
"""

import copy
import re
import secrets
from collections.abc import Iterator

from springtide import errors
from springtide.platforms.k8s.api.kinds import parse_quantity
from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import schema
from springtide_lab.kubernetes.objects.kinds import BUDGETS, CRDS, NAMESPACES, PODS, RBAC, Kind

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RULES_NAME = re.compile(r"[^/%]+")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
MAY_CHANGE = ("tolerations", "terminationGracePeriodSeconds")
NOT_READY = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for why in ("not-ready", "unreachable")
]


def name_faults(kind: Kind, meta: Json) -> Iterator[str]:
    name = meta.get("name") or ""
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
        return
    form, longest = SUBDOMAIN, 253
    if kind.plural == "services":
        form, longest = SERVICE, 63
    elif kind is NAMESPACES:
        form, longest = DNS_LABEL, 63
    elif kind.group == RBAC:
        form = RULES_NAME
    if not form.fullmatch(name) or len(name) > longest:
        yield f'metadata.name: Invalid value: "{name}": must match {form.pattern!r} and have at most {longest} letters'


def label_faults(labels: Json | None) -> Iterator[str]:
    """Yield the faults of labels, such as values of more than 63 characters."""
    for key, value in (labels or {}).items():
        if not KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield f'metadata.labels: Invalid value: "{key}": name part must be a qualified name'
        if not isinstance(value, str) or not VALUE.fullmatch(value) or len(value) > 63:
            yield f'metadata.labels: Invalid value: "{value}": a label has at most 63 characters of [-A-Za-z0-9_.]'


def admit_new(store: Store, kind: Kind, item: Json) -> Json:
    if kind is PODS:
        return admit_pod(store, item)
    if kind is NAMESPACES:
        item["spec"] = {"finalizers": ["kubernetes"]}
        item["status"] = {"phase": "Active"}
    elif kind is CRDS:
        fill_definition(item)
    elif kind.plural == "services":
        _fill_service(item)
    elif kind.plural == "persistentvolumeclaims":
        item["status"] = {"phase": "Pending"}
    elif kind is BUDGETS:
        item["status"] = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
    return item


def admit_change(kind: Kind, new: Json, old: Json, part: str) -> Json:
    if kind is PODS:
        return admit_pod_change(new, old, part)
    if kind is CRDS:
        fill_definition(new)
    return new


def faults(kind: Kind, item: Json, old: Json | None) -> Iterator[str]:
    yield from label_faults(item["metadata"].get("labels"))
    for index, owner in enumerate(item["metadata"].get("ownerReferences") or []):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield f"metadata.ownerReferences[{index}].{key}: Required value: must not be empty"
    if kind is PODS:
        yield from pod_faults(item, old)
    elif kind is CRDS:
        yield from definition_faults(item)
    elif kind.plural in ("secrets", "configmaps"):
        size = sum(len(str(value)) for key in ("data", "binaryData") for value in (item.get(key) or {}).values())
        if size > 1024 * 1024 * 4 // 3:
            yield "data: Too long: may not be more than 1048576 bytes"


def _fill_service(item: Json) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("clusterIP", "10.96.0.1")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    item["status"] = {"loadBalancer": {}}


def admit_pod(store: Store, pod: Json) -> Json:
    spec = pod.setdefault("spec", {})
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("securityContext", {}),
        ("schedulerName", "default-scheduler"),
    ):
        spec.setdefault(key, value)
    account_name = spec.setdefault("serviceAccountName", "default")
    account = store.get("serviceaccounts", (namespace, account_name))
    if account is None:
        why = f'error looking up service account {namespace}/{account_name}: serviceaccount "{account_name}" not found'
        raise status_errors.forbidden("pods", name, why)
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_account(spec)
    spec.setdefault("tolerations", [])
    spec["tolerations"] += [each for each in NOT_READY if each not in spec["tolerations"]]
    for container in spec.get("containers", []):
        _fill_container(container)
    pod["status"] = {"phase": "Pending", "qosClass": quality_of(spec)}
    return pod


def _fill_container(container: Json) -> None:
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "IfNotPresent")
    resources = container.setdefault("resources", {})
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)


def _mount_account(spec: Json) -> None:
    name = f"kube-api-access-{secrets.token_hex(3)[:5]}"
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    spec.setdefault("volumes", []).append(
        {
            "name": name,
            "projected": {
                "defaultMode": 0o644,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": items}},
                    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
                ],
            },
        }
    )
    for container in spec.get("containers", []):
        container.setdefault("volumeMounts", []).append({"name": name, "readOnly": True, "mountPath": ACCOUNT_FOLDER})


def quality_of(spec: Json) -> str:
    asked = [each.get("resources") or {} for each in spec.get("containers", [])]
    if not any(each.get("requests") or each.get("limits") for each in asked):
        return "BestEffort"
    for each in asked:
        limits, requests = each.get("limits") or {}, each.get("requests") or {}
        if any(name not in limits or requests.get(name) != limits[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def admit_pod_change(new: Json, old: Json, part: str) -> Json:
    """Return the changed pod. Resources change only through `resize`; a status keeps the server's own fields."""
    if part == "resize":
        spec = copy.deepcopy(old["spec"])
        by_name = {each["name"]: each for each in new["spec"].get("containers", [])}
        for container in spec["containers"]:
            given = by_name.get(container["name"], container)
            container["resources"] = given.get("resources") or {}
        new = {**new, "spec": spec}
        if quality_of(spec) != old["status"].get("qosClass", quality_of(old["spec"])):
            fault = "metadata: Invalid value: Pod QOS Class may not change as a result of resizing"
            raise status_errors.invalid("pods", old["metadata"]["name"], [fault])
    if part == "status" and "qosClass" in old.get("status", {}):
        new.setdefault("status", {}).setdefault("qosClass", old["status"]["qosClass"])
    if part == "":
        for container in new["spec"].get("containers", []):
            _fill_container(container)
    return new


def pod_faults(pod: Json, old: Json | None) -> Iterator[str]:
    """Yield the faults of a new pod, or of a change to a pod."""
    spec = pod["spec"]
    if old is not None:
        if _fixed(spec) != _fixed(old["spec"]):
            yield f"spec: Forbidden: pod updates may not change fields other than image of containers, {MAY_CHANGE}"
        return
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    for path in ("hostname", "subdomain"):
        if path in spec and (not DNS_LABEL.fullmatch(spec[path]) or len(spec[path]) > 63):
            yield f'spec.{path}: Invalid value: "{spec[path]}": must be a lowercase RFC 1123 label'
    volumes = [each.get("name") for each in spec.get("volumes") or []]
    if len(volumes) > len(set(volumes)):
        yield f"spec.volumes: Duplicate value: {volumes}"
    for index, container in enumerate(spec.get("containers") or []):
        yield from _container_faults(container, f"spec.containers[{index}]", volumes)


def _container_faults(container: Json, path: str, volumes: list[str]) -> Iterator[str]:
    name = container.get("name", "")
    if not DNS_LABEL.fullmatch(name) or len(name) > 63:
        yield f'{path}.name: Invalid value: "{name}": must be a lowercase RFC 1123 label'
    if not container.get("image"):
        yield f"{path}.image: Required value"
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            yield f'{path}.volumeMounts[{index}].name: Not found: "{mount.get("name")}"'
    for index, variable in enumerate(container.get("env") or []):
        if not isinstance(variable.get("value", ""), str):
            yield f"{path}.env[{index}].value: Invalid value: must be a string"
    yield from _resource_faults(container.get("resources") or {}, f"{path}.resources")


def _resource_faults(resources: Json, path: str) -> Iterator[str]:
    limits = resources.get("limits") or {}
    for key, value in [*limits.items(), *(resources.get("requests") or {}).items()]:
        try:
            exceeds = key in limits and parse_quantity(value) > parse_quantity(limits[key])
        except errors.BadInput as error:
            yield f"{path}.{key}: Invalid value: {error}"
            continue
        if exceeds:
            yield f'{path}.requests: Invalid value: "{value}": must be at most the {key} limit of {limits[key]}'


def _fixed(spec: Json) -> Json:
    fixed = {key: value for key, value in spec.items() if key not in MAY_CHANGE and key != "nodeName"}
    fixed["containers"] = [
        {key: value for key, value in each.items() if key not in ("image", "resources")} for each in spec["containers"]
    ]
    return fixed


def grace_of(kind: Kind, item: Json, asked: int | None) -> int:
    """Return the seconds that an object may take to end: 0 unless it is a running pod."""
    if kind is not PODS or not item["spec"].get("nodeName"):
        return 0
    if item.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = item["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(grace))


def fill_definition(item: Json) -> None:
    """Mark a definition as in force in its status."""
    at = item["metadata"].get("creationTimestamp", "")
    item.setdefault("status", {})["conditions"] = [
        {"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("NamesAccepted", "Established")
    ]


def definition_faults(item: Json) -> Iterator[str]:
    spec, names = item["spec"], item["spec"].get("names", {})
    if item["metadata"]["name"] != f"{names.get('plural', '')}.{spec.get('group', '')}":
        yield 'metadata.name: Invalid value: must be spec.names.plural+"."+spec.group'
    if [bool(each.get("storage")) for each in spec.get("versions", [])].count(True) != 1:
        yield "spec.versions: Invalid value: must have exactly one version marked as storage version"
    for index, version in enumerate(spec.get("versions", [])):
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        found = (version.get("schema") or {}).get("openAPIV3Schema")
        if found is None:
            yield f"{path}: Required value: schemas are required"
        else:
            yield from schema.misshapen(found, path)


def kinds_of(item: Json) -> list[Kind]:
    spec, names = item["spec"], item["spec"]["names"]
    return [
        Kind(
            names["plural"],
            names["kind"],
            spec["group"],
            version["name"],
            namespaced=spec["scope"] == "Namespaced",
            subresources=tuple(version.get("subresources") or ()),
            counted=True,
            schema=version["schema"]["openAPIV3Schema"],
        )
        for version in spec["versions"]
        if version.get("served")
    ]
