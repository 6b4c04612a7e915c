"""What `containers` is to start for a container of a pod.

In: the pod and what it refers to. Out: a `Wish`: command, environment, volumes, limits, user. `environment.Missing`
where the pod cannot run as it is.
"""

import os.path
import pathlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from springtide.domain.core.resources import LEAST_MEMORY, ProcessLimits
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet import environment
from springtide_lab.kubernetes.kubelet.containers import PACKAGE, Mount, Wish
from springtide_lab.kubernetes.kubelet.environment import Lookup, Missing
from springtide_lab.kubernetes.objects import selectors


def wish_of(
    pod: Json,
    container: Json,
    *,
    env: Mapping[str, str],
    lookup: Lookup,
    mounts: Mapping[str, Mount],
    hosts: pathlib.Path,
    log: pathlib.Path,
) -> Wish:
    context = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    uid = int(context.get("runAsUser") or 0)
    if context.get("runAsNonRoot") and uid == 0:
        raise Missing("container has runAsNonRoot and image will run as root")
    known = {**env, **environment.variables(pod, container, lookup)}
    argv = environment.command(container, known)
    if not argv:
        raise Missing("no command specified: there is no image that could have one")
    group = context.get("fsGroup")
    return Wish(
        name=f"{pod['metadata']['name']}-{container['name']}",
        argv=argv,
        env={"HOSTNAME": hostname(pod), **known},
        cwd=container.get("workingDir") or "/",
        hostname=hostname(pod),
        hosts=hosts,
        log=log,
        mounts=_mounts(container, mounts),
        limits=limits_of(container),
        uid=uid,
        gid=int(context.get("runAsGroup") or 0),
        groups=[*(context.get("supplementalGroups") or []), *([group] if group is not None else [])],
        read_only=bool(context.get("readOnlyRootFilesystem")),
    )


def image_env(api: tuple[str, int]) -> dict[str, str]:
    """What an image and a kubelet give every container: here `python` is this interpreter, with this package."""
    tools = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin"]
    return {
        "PATH": ":".join(tools),
        "PYTHONPATH": str(PACKAGE),
        "LANG": "C.UTF-8",
        "HOME": "/",
        "KUBERNETES_SERVICE_HOST": api[0],
        "KUBERNETES_SERVICE_PORT": str(api[1]),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(api[1]),
    }


def hostname(pod: Json) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _mounts(container: Json, volumes: Mapping[str, Mount]) -> Sequence[Mount]:
    found = []
    for wanted in sorted(container.get("volumeMounts") or [], key=lambda each: len(str(each["mountPath"]))):
        volume = volumes[wanted["name"]]
        source = volume.source / wanted["subPath"] if wanted.get("subPath") else volume.source
        if wanted.get("subPath") and not source.exists():
            source.mkdir(parents=True)
            source.chmod(0o777)
        read_only = volume.read_only or bool(wanted.get("readOnly"))
        target = os.path.normpath(wanted["mountPath"])
        found.append(replace(volume, source=source, target=target, read_only=read_only))
    return found


def limits_of(container: Json) -> ProcessLimits:
    """From its resources; no container gets less than an interpreter needs."""
    found = (container.get("resources") or {}).get("limits") or {}
    cpu, memory = found.get("cpu"), found.get("memory")
    return ProcessLimits(
        cpu=None if cpu is None else max(0.01, selectors.number(cpu)),
        memory=None if memory is None else max(LEAST_MEMORY, int(selectors.number(memory))),
    )
