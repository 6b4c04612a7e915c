"""Pure. Names of services and pods as a hosts file: what a cluster's DNS would answer, for one namespace's pods.

In: services and pods. Out: the text of `/etc/hosts`. A service's name stands for the addresses of its pods, headless or
not: a port of a service must be its target's.
"""

from collections.abc import Iterable, Sequence

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control.namespaces import is_ready
from springtide_lab.kubernetes.objects import selectors

DOMAIN = "cluster.local"


def text(namespace: str, services: Iterable[Json], pods: Sequence[Json]) -> str:
    """The whole file, as pods of `namespace` see it."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for pod in pods:
        if pod["metadata"]["namespace"] == namespace and _address(pod):
            lines.append(f"{_address(pod)} {pod['spec'].get('hostname') or pod['metadata']['name']}")
    for service in services:
        where, name = service["metadata"]["namespace"], service["metadata"]["name"]
        for pod in pods:
            if pod["metadata"]["namespace"] != where or not _answers(service, pod):
                continue
            lines.append(f"{_address(pod)} {' '.join(_names(name, where, namespace))}")
            if pod["spec"].get("subdomain") == name and (host := pod["spec"].get("hostname")):
                lines.append(f"{_address(pod)} {' '.join(_names(f'{host}.{name}', where, namespace))}")
    return "\n".join(lines) + "\n"


def _names(name: str, where: str, seen_from: str) -> list[str]:
    names = [f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
    return names + ([name] if where == seen_from else [])


def _address(pod: Json) -> str:
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return ""
    return str(pod.get("status", {}).get("podIP") or "")


def _answers(service: Json, pod: Json) -> bool:
    wanted = service["spec"].get("selector")
    if not wanted or not _address(pod):
        return False
    fits = selectors.by_structure({"matchLabels": wanted})(pod["metadata"].get("labels") or {})
    return fits and bool(is_ready(pod) or service["spec"].get("publishNotReadyAddresses"))
