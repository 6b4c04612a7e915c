"""What is special of pods: defaults, what may not change, how long they may take to end.

In: a pod on its way into the store. Out: the pod as a server keeps it (service account and its token, priority, quality
of service), or what is wrong with it.
"""

import copy
import re
import secrets
from collections.abc import Iterator

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import selectors

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
MAY_CHANGE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
NOT_READY = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for why in ("not-ready", "unreachable")
]


def admit_new(store: Store, pod: Json) -> Json:
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


def admit_change(new: Json, old: Json, part: str) -> Json:
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


def faults(pod: Json, old: Json | None) -> Iterator[str]:
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
        if path in spec and (not LABEL.fullmatch(spec[path]) or len(spec[path]) > 63):
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
    if not LABEL.fullmatch(name) or len(name) > 63:
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


def grace_of(pod: Json, asked: int | None) -> int:
    """None where nobody runs it, or where it has ended; else what was asked for, or what the pod says."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(grace))
