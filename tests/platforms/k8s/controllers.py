"""What a cluster's controller manager does, for an API server that runs without one (kube-apiserver and etcd alone).

In: a kubeconfig and the namespaces to look after; no others are touched. Out: standard calls of the API, as
`springtide_lab.kubernetes.control.reconcile` decides. Whether one is needed: `is_missing`.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from typing import Self

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    KNOWN,
    NAMESPACES,
    NODES,
    SERVICE_ACCOUNTS,
    Object,
    ObjectKind,
)
from springtide_lab.kubernetes.control import reconcile

log = logging.getLogger(__name__)

ROUND_S = 0.3
MANAGER_S = 15.0
"""A controller manager that has just been started has made the first account by then."""
CONTENTS = (*(kind for kind in KNOWN if kind.namespaced and kind is not ELASTIC_JOBS), ELASTIC_JOBS)
"""Owners last: whoever is seen with an owner that is not there a moment later has lost it."""


async def is_missing(client: Client, *, within_s: float = MANAGER_S) -> bool:
    """Whether no controller manager runs here: namespace `default` gets no account."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(errors.NotFound):
                    await client.get(SERVICE_ACCOUNTS, "default", namespace="default")
                    return False
                await asyncio.sleep(ROUND_S)
    except TimeoutError:
        return True


class Controllers:
    """Runs the controllers for namespaces with this prefix in a process of its own, within a `with`."""

    def __init__(self, kubeconfig: str | os.PathLike[str], prefix: str) -> None:
        self._command = [sys.executable, "-m", __name__, os.fspath(kubeconfig), prefix]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # it ends with its standard input, so also with a test that is killed
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def run(kubeconfig: str, prefix: str) -> None:
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with Client.open(kubeconfig) as client:
        while not over.done():
            try:
                await reconcile_once(client, lambda name: name.startswith(prefix))
            except errors.SpringtideError as error:
                log.warning("controllers look again: %s", error)
            await asyncio.wait({over}, timeout=ROUND_S)


async def reconcile_once(client: Client, chosen: Callable[[str], bool]) -> None:
    """Reconcile all namespaces that `chosen` accepts."""
    nodes = {node["metadata"]["name"] for node in (await client.list(NODES)).items}
    for space in (await client.list(NAMESPACES)).items:
        name, leaving = space["metadata"]["name"], "deletionTimestamp" in space["metadata"]
        if not chosen(name):
            continue
        if not leaving:
            await furnish(client, name)
        there = [(kind, thing) for kind in CONTENTS for thing in await contents(client, kind, name)]
        if leaving and not there:
            await finish(client, space)
        for step in reconcile.decide(there, nodes=nodes, leaving=leaving):
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await do(client, step)


async def furnish(client: Client, namespace: str) -> None:
    with contextlib.suppress(errors.AlreadyThere, errors.Forbidden):  # it may be on its way out
        await client.create(SERVICE_ACCOUNTS, SERVICE_ACCOUNTS.body("default", namespace))
    with contextlib.suppress(errors.AlreadyThere, errors.Forbidden):
        data = {"ca.crt": authority(client)}
        await client.create(CONFIG_MAPS, CONFIG_MAPS.body("kube-root-ca.crt", namespace, data=data))


async def contents(client: Client, kind: ObjectKind, namespace: str) -> list[Object]:
    try:
        return (await client.list(kind, namespace=namespace)).items
    except errors.NotFound:
        return []


async def do(client: Client, step: reconcile.Step) -> None:
    kind, metadata = step.kind, step.thing["metadata"]
    assert isinstance(kind, ObjectKind)
    name, namespace = metadata["name"], metadata["namespace"]
    match step:
        case reconcile.Delete(grace_s=grace_s):
            uid = metadata["uid"]
            await client.delete(kind, name, namespace=namespace, uid=uid, grace_s=grace_s, propagation="Background")
        case reconcile.Let(holds=holds):
            change = {"resourceVersion": metadata["resourceVersion"], "finalizers": list(holds) or None}
            await client.patch(kind, name, {"metadata": change}, namespace=namespace)
        case reconcile.Count(status=status):
            await client.patch(kind, name, {"status": status}, namespace=namespace, subresource="status")


async def finish(client: Client, space: Object) -> None:
    body = {**space, "spec": {"finalizers": []}}
    with contextlib.suppress(errors.NotFound, errors.Conflict):
        await client.update(NAMESPACES, body, subresource="finalize")


def authority(client: Client) -> str:
    """The certificates that this client trusts, as pods are to trust them."""
    verify = client.access.verify
    trusted = verify.get_ca_certs(binary_form=True) if isinstance(verify, ssl.SSLContext) else []
    return "".join(ssl.DER_cert_to_PEM_cert(each) for each in trusted)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:3]))
