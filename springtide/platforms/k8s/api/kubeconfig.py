"""Finds the Kubernetes API server and credentials: in a kubeconfig, or in the pod's account."""

import asyncio
import base64
import contextlib
import datetime
import os
import pathlib
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from springtide import config, errors, file_input

ACCOUNTS = ("/run/springtide/account", "/var/run/secrets/kubernetes.io/serviceaccount")
"""Folders of a pod's service account, with the files token, ca.crt and namespace."""
REREAD_S = 60.0  # seconds until a token file is read again; Kubernetes replaces tokens in pods long before they expire
HOME = "~/.kube/config"


@dataclass(slots=True)
class Access:
    """Access to one API server with one identity."""

    server: str
    where: str
    """Source of the access data, for messages."""
    namespace: str = "default"
    verify: ssl.SSLContext | bool = True
    server_name: str | None = None
    proxy: str | None = None
    token: str = ""
    token_file: str = ""
    program: Mapping[str, Any] = field(default_factory=dict)
    until: float = 0.0
    """Time at which the token must be read again."""

    async def headers(self, *, anew: bool = False) -> dict[str, str]:
        if anew or time.time() >= self.until:
            self.until = time.time() + REREAD_S
            if self.token_file:
                self.token = file_input.read(pathlib.Path(self.token_file), what="a token").strip()
            elif self.program:
                await self._run()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def _run(self) -> None:
        status = await printed_by(self.program)
        self.token = status.get("token", "")
        if ends := status.get("expirationTimestamp"):
            self.until = datetime.datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() - REREAD_S
        if "clientCertificateData" in status:
            context = self.verify if isinstance(self.verify, ssl.SSLContext) else ssl.create_default_context()
            give_certificate(context, status["clientCertificateData"].encode(), status["clientKeyData"].encode())
            self.verify = context


def find(kubeconfig: str = "", context: str = "", accounts: Sequence[str] = ACCOUNTS) -> Access:
    named = kubeconfig or config.variable("KUBECONFIG")
    if named:
        return of_files([pathlib.Path(path).expanduser() for path in named.split(os.pathsep) if path], context)
    for folder in accounts:
        if (pathlib.Path(folder) / "token").exists() and config.variable("KUBERNETES_SERVICE_HOST"):
            return of_account(pathlib.Path(folder))
    if (home := pathlib.Path(HOME).expanduser()).exists():
        return of_files([home], context)
    raise errors.MissingFile(
        f"no Kubernetes cluster is known here: there is no {HOME}, KUBECONFIG is not set, and this is not a pod. "
        "Set KUBECONFIG to your cluster's file"
    )


def of_account(folder: pathlib.Path) -> Access:
    host, port = config.variable("KUBERNETES_SERVICE_HOST"), config.variable("KUBERNETES_SERVICE_PORT") or "443"
    verify = ssl.create_default_context(cafile=str(folder / "ca.crt")) if (folder / "ca.crt").exists() else True
    space = folder / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        where=f"this pod's account ({folder})",
        namespace=space.read_text().strip() if space.exists() else "default",
        verify=verify,
        token_file=str(folder / "token"),
    )


def of_files(paths: Sequence[pathlib.Path], context: str = "") -> Access:
    """Read a context of kubeconfig files, by default the current context. If two files define the same name, the
    definition of the first file applies.
    """
    read = [(path, load(path)) for path in paths if path.exists()]
    if not read:
        raise errors.MissingFile(
            f"no kubeconfig at {', '.join(map(str, paths))}; set KUBECONFIG to your cluster's file"
        )
    name = context or next((content["current-context"] for _, content in read if content.get("current-context")), "")
    path, chosen = entry(read, "contexts", "context", name)
    at, cluster = entry(read, "clusters", "cluster", chosen.get("cluster", ""))
    user_at, user = entry(read, "users", "user", chosen["user"]) if chosen.get("user") else (path, {})
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        where=f"context {name!r} of {path}",
        namespace=chosen.get("namespace") or "default",
        verify=certificates(cluster, at.parent, user, user_at.parent),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        token=user.get("token", ""),
        token_file=str(user_at.parent / user["tokenFile"]) if user.get("tokenFile") else "",
        program=user.get("exec") or {},
    )


def load(path: pathlib.Path) -> dict[str, Any]:
    read = file_input.parse(path, file_input.read(path, what="a kubeconfig"))
    if not isinstance(read, dict):
        raise errors.BadInput(f"{path} is not a kubeconfig: expected clusters, users and contexts")
    return read


def entry(
    read: Sequence[tuple[pathlib.Path, dict[str, Any]]], many: str, one: str, name: str
) -> tuple[pathlib.Path, dict[str, Any]]:
    known = []
    for path, content in read:
        for part in content.get(many) or []:
            known.append(part["name"])
            if part["name"] == name:
                return path, part.get(one) or {}
    raise errors.UnknownName(f"{one} in the kubeconfig", name, known)


def certificates(
    cluster: Mapping[str, Any], at: pathlib.Path, user: Mapping[str, Any], user_at: pathlib.Path
) -> ssl.SSLContext | bool:
    if not str(cluster.get("server", "")).startswith("https"):
        return True
    authority = content(cluster, "certificate-authority", at)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = content(user, "client-certificate", user_at), content(user, "client-key", user_at)
    if certificate and key:
        give_certificate(context, certificate, key)
    return context


def content(part: Mapping[str, Any], name: str, folder: pathlib.Path) -> bytes:
    if data := part.get(f"{name}-data"):
        return base64.b64decode(data)
    return file_input.read(folder / part[name], what=f"a {name}").encode() if part.get(name) else b""


def give_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a key pair through a temporary file, because `ssl` only reads key pairs from files."""
    with tempfile.TemporaryDirectory(prefix="springtide-") as folder:
        path = pathlib.Path(folder) / "pair.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(path)


async def printed_by(program: Mapping[str, Any]) -> dict[str, Any]:
    command = [program["command"], *(program.get("args") or [])]
    variables = {variable["name"]: variable["value"] for variable in program.get("env") or []}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**config.child_environment({}, {}), **variables},
        )
        out, error_output = await process.communicate()
    except OSError as error:
        raise errors.MissingFile(f"the kubeconfig wants {command[0]!r} for credentials: {error.strerror}") from None
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        if process.returncode == 0:
            return dict(msgspec.json.decode(out)["status"])
    why = error_output.decode(errors="replace").strip()
    raise errors.Forbidden(f"{' '.join(command)} returned no credentials (status {process.returncode}): {why}")
