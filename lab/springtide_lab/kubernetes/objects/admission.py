"""What a server fills in and refuses, by kind: names and labels of everything; pods; definitions; services and others.

In: an object on its way into the store. Out: the same with defaults, or what is wrong with it; for a definition, the
`Kind`s that it makes, one for each served version.
"""

import base64
import copy
import re
import secrets
from collections.abc import Iterator

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import schema, selectors
from springtide_lab.kubernetes.objects.kinds import ACCOUNTS, BUDGETS, CLASSES, CRDS, NAMESPACES, PODS, Kind

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RULES_NAME = re.compile(r"[^/%]+")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
MAY_CHANGE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
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
        form, longest = LABEL, 63
    elif kind.group == "rbac.authorization.k8s.io":
        form = RULES_NAME
    if not form.fullmatch(name) or len(name) > longest:
        yield f'metadata.name: Invalid value: "{name}": must match {form.pattern!r} and have at most {longest} letters'
    yield from label_faults(meta.get("labels"), "metadata.labels")


def label_faults(labels: Json | None, path: str) -> Iterator[str]:
    """What is wrong with labels: a value has at most 63 characters, and none that are odd."""
    for key, value in (labels or {}).items():
        if not KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield f'{path}: Invalid value: "{key}": name part must be a qualified name'
        if not isinstance(value, str) or not VALUE.fullmatch(value) or len(value) > 63:
            yield f'{path}: Invalid value: "{value}": a valid label value has at most 63 characters of [-A-Za-z0-9_.]'


def admit_new(store: Store, kind: Kind, item: Json) -> Json:
    meta, namespace = item["metadata"], item["metadata"].get("namespace", "")
    if kind is PODS:
        return admit_pod(store, item)
    if kind is NAMESPACES:
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
        item["spec"] = {"finalizers": ["kubernetes"]}
        item["status"] = {"phase": "Active"}
    elif kind is CRDS:
        fill_definition(item)
    elif kind.plural == "services":
        _fill_service(item)
    elif kind.plural == "secrets":
        item.setdefault("type", "Opaque")
        _fold_plain(item)
    elif kind.plural == "persistentvolumeclaims":
        item["status"] = {"phase": "Pending"}
        item["spec"].setdefault("volumeMode", "Filesystem")
    elif kind is BUDGETS:
        item["status"] = {
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "disruptionsAllowed": 0,
            "expectedPods": 0,
            "observedGeneration": 0,
        }
    elif kind is CLASSES:
        item.setdefault("preemptionPolicy", "PreemptLowerPriority")
    elif kind is ACCOUNTS and namespace == "":
        raise status_errors.bad_request("a service account has a namespace")
    return item


def admit_change(store: Store, kind: Kind, new: Json, old: Json, part: str) -> Json:
    if kind is PODS:
        return admit_pod_change(new, old, part)
    if kind is CRDS:
        fill_definition(new)
    if kind.plural == "secrets":
        _fold_plain(new)
    return new


def faults(kind: Kind, item: Json, old: Json | None) -> Iterator[str]:
    yield from label_faults(item["metadata"].get("labels"), "metadata.labels")
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
        if old is not None and old.get("immutable") and (item.get("data") != old.get("data")):
            yield "data: Forbidden: field is immutable when `immutable` is set"
    elif kind.plural == "services" and old is not None:
        if item["spec"].get("clusterIP", old["spec"]["clusterIP"]) != old["spec"]["clusterIP"]:
            yield "spec.clusterIPs[0]: Invalid value: may not change once set"
    elif kind.group == "rbac.authorization.k8s.io" and kind.plural.endswith("bindings"):
        if old is not None and item.get("roleRef") != old.get("roleRef"):
            yield "roleRef: Invalid value: cannot change roleRef"
    elif kind is BUDGETS:
        spec = item.get("spec") or {}
        if ("minAvailable" in spec) and ("maxUnavailable" in spec):
            yield "spec: Invalid value: minAvailable and maxUnavailable cannot be both set"
    elif kind.plural == "leases" and (item.get("spec") or {}).get("leaseTransitions", 0) < 0:
        yield "spec.leaseTransitions: Invalid value: must be greater than or equal to 0"


def grace_of(kind: Kind, item: Json, asked: int | None) -> int:
    """How long an object that is being deleted may take to end: only pods may take any time."""
    if kind is not PODS:
        return 0
    return pod_grace(item, asked)


def _fill_service(item: Json) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if "clusterIP" not in spec:
        number = sum(item["metadata"]["uid"].encode()) * 251 + len(item["metadata"]["name"])
        spec["clusterIP"] = f"10.96.{number // 250 % 250}.{1 + number % 250}"
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    item["status"] = {"loadBalancer": {}}


def _fold_plain(item: Json) -> None:
    for key, value in (item.pop("stringData", None) or {}).items():
        item.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def admit_pod(store: Store, pod: Json) -> Json:
    spec = pod.setdefault("spec", {})
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("securityContext", {}),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
        ("preemptionPolicy", "PreemptLowerPriority"),
    ):
        spec.setdefault(key, value)
    account_name = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = account_name
    account = store.get("serviceaccounts", (namespace, account_name))
    if account is None:
        why = f'error looking up service account {namespace}/{account_name}: serviceaccount "{account_name}" not found'
        raise status_errors.forbidden("pods", name, why)
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_account(spec)
    _set_priority(store, spec, name)
    spec.setdefault("tolerations", [])
    spec["tolerations"] += [each for each in NOT_READY if each not in spec["tolerations"]]
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        _fill_container(container)
    pod["status"] = {"phase": "Pending", "qosClass": quality_of(spec)}
    return pod


def _fill_container(container: Json) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    latest = ":" not in container.get("image", "").rpartition("/")[2] or container.get("image", "").endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    resources = container.setdefault("resources", {})
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")


def _mount_account(spec: Json) -> None:
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    without = [
        each for each in containers if all(m.get("mountPath") != ACCOUNT_FOLDER for m in each.get("volumeMounts") or [])
    ]
    if not without:
        return
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
    for container in without:
        container.setdefault("volumeMounts", []).append({"name": name, "readOnly": True, "mountPath": ACCOUNT_FOLDER})


def _set_priority(store: Store, spec: Json, name: str) -> None:
    if class_name := spec.get("priorityClassName"):
        found = store.get("priorityclasses.scheduling.k8s.io", ("", class_name))
        if found is None:
            raise status_errors.forbidden("pods", name, f"no PriorityClass with name {class_name} was found")
        spec["priority"] = found["value"]
        spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")
    else:
        spec["priority"] = 0


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
    """A change of resources is taken through `resize` alone; a status keeps what the server itself wrote."""
    if part == "resize":
        spec = copy.deepcopy(old["spec"])
        by_name = {each["name"]: each for each in new["spec"].get("containers", [])}
        for container in spec["containers"]:
            given = by_name.get(container["name"], container)
            container["resources"] = given.get("resources") or {}
        new = {**new, "spec": spec}
        if quality_of(spec) != old["status"].get("qosClass", quality_of(old["spec"])):
            fault = "metadata: Invalid value: Pod QOS Class may not change as a result of resizing"
            raise status_errors.invalid("Pod", "", old["metadata"]["name"], [fault])
    if part == "status" and "qosClass" in old.get("status", {}):
        new.setdefault("status", {}).setdefault("qosClass", old["status"]["qosClass"])
    if part == "":
        for container in [*new["spec"].get("containers", []), *new["spec"].get("initContainers", [])]:
            _fill_container(container)
    return new


def pod_faults(pod: Json, old: Json | None) -> Iterator[str]:
    """What is wrong with a pod, or with a change to it."""
    spec = pod["spec"]
    if old is not None:
        if _fixed(spec) != _fixed(old["spec"]):
            yield (
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
                "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
                "existing tolerations),`spec.terminationGracePeriodSeconds`"
            )
        return
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    for path in ("hostname", "subdomain"):
        if path in spec and (not DNS_LABEL.fullmatch(spec[path]) or len(spec[path]) > 63):
            yield f'spec.{path}: Invalid value: "{spec[path]}": must be a lowercase RFC 1123 label'
    volumes = [each.get("name") for each in spec.get("volumes") or []]
    for index, volume in enumerate(spec.get("volumes") or []):
        if volumes.count(volume.get("name")) > 1:
            yield f'spec.volumes[{index}].name: Duplicate value: "{volume.get("name")}"'
        if len(volume) != 2:
            yield f"spec.volumes[{index}]: Required value: must specify one volume type"
    names: list[str] = []
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or []):
            path = f"spec.{field}[{index}]"
            if container.get("name") in names:
                yield f'{path}.name: Duplicate value: "{container.get("name")}"'
            names.append(container.get("name", ""))
            yield from _container_faults(container, path, volumes)


def _container_faults(container: Json, path: str, volumes: list[str]) -> Iterator[str]:
    name = container.get("name", "")
    if not DNS_LABEL.fullmatch(name) or len(name) > 63:
        yield f'{path}.name: Invalid value: "{name}": must be a lowercase RFC 1123 label'
    if not container.get("image"):
        yield f"{path}.image: Required value"
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            yield f'{path}.volumeMounts[{index}].name: Not found: "{mount.get("name")}"'
        if not mount.get("mountPath"):
            yield f"{path}.volumeMounts[{index}].mountPath: Required value"
    for index, variable in enumerate(container.get("env") or []):
        if not ENV_NAME.fullmatch(variable.get("name", "")):
            yield f'{path}.env[{index}].name: Invalid value: "{variable.get("name")}"'
        if not isinstance(variable.get("value", ""), str):
            yield f"{path}.env[{index}].value: Invalid value: must be a string"
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for key, value in (resources.get(part) or {}).items():
            if not selectors.is_quantity(value):
                yield f'{path}.resources.{part}[{key}]: Invalid value: "{value}": quantities must match the format'
    for key, value in (resources.get("requests") or {}).items():
        limit = (resources.get("limits") or {}).get(key)
        if limit is not None and selectors.is_quantity(value) and selectors.number(value) > selectors.number(limit):
            at_most = f"must be less than or equal to {key} limit of {limit}"
            yield f'{path}.resources.requests: Invalid value: "{value}": {at_most}'


def _fixed(spec: Json) -> Json:
    fixed = {key: value for key, value in spec.items() if key not in MAY_CHANGE and key != "nodeName"}
    for field in ("containers", "initContainers"):
        fixed[field] = [
            {key: value for key, value in each.items() if key not in ("image", "resources")}
            for each in spec.get(field) or []
        ]
    return fixed


def pod_grace(pod: Json, asked: int | None) -> int:
    """None where nobody runs it, or where it has ended; else what was asked for, or what the pod says."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(grace))


def fill_definition(item: Json) -> None:
    """Names that follow from others, and the status of a definition that is in force."""
    spec = item["spec"]
    names = spec.setdefault("names", {})
    names.setdefault("singular", names.get("kind", "").lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    spec.setdefault("conversion", {"strategy": "None"})
    stored = [each["name"] for each in spec.get("versions", []) if each.get("storage")]
    status = item.setdefault("status", {})
    status["acceptedNames"], status["storedVersions"] = dict(names), stored
    at = item["metadata"].get("creationTimestamp", "")
    status["conditions"] = [
        {
            "type": "NamesAccepted",
            "status": "True",
            "reason": "NoConflicts",
            "message": "no conflicts found",
            "lastTransitionTime": at,
        },
        {
            "type": "Established",
            "status": "True",
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
            "lastTransitionTime": at,
        },
    ]


def definition_faults(item: Json) -> Iterator[str]:
    spec, names = item["spec"], item["spec"].get("names", {})
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if item["metadata"]["name"] != wanted:
        name = item["metadata"]["name"]
        yield f'metadata.name: Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield f'spec.scope: Unsupported value: "{spec.get("scope")}": supported values: "Cluster", "Namespaced"'
    if [bool(each.get("storage")) for each in spec.get("versions", [])].count(True) != 1:
        yield "spec.versions: Invalid value: must have exactly one version marked as storage version"
    for index, version in enumerate(spec.get("versions", [])):
        found = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        if found is None:
            yield f"{path}: Required value: schemas are required"
            continue
        yield from schema.misshapen(found, path)
        for at, column in enumerate(version.get("additionalPrinterColumns") or []):
            path = f"spec.versions[{index}].additionalPrinterColumns[{at}]"
            if column.get("type") not in ("integer", "number", "string", "boolean", "date"):
                yield f'{path}.type: Unsupported value: "{column.get("type")}"'
            if not str(column.get("jsonPath", "")).startswith("."):
                yield f"{path}.jsonPath: Invalid value: must be a simple json path"


def kinds_of(item: Json) -> list[Kind]:
    spec, names = item["spec"], item["spec"]["names"]
    return [
        Kind(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names["singular"],
            list_kind=names["listKind"],
            namespaced=spec["scope"] == "Namespaced",
            short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(each for each in ("status",) if each in (version.get("subresources") or {})),
            custom=True,
            schema=version["schema"]["openAPIV3Schema"],
            fields=tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or []),
        )
        for version in spec["versions"]
        if version.get("served")
    ]
