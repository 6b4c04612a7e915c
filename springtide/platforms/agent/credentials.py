"""Creates a certificate authority for one job, and a certificate for each kind of role, in memory.

In: the job's name and the time. Out: files by name. On Kubernetes the operator stores the files in a Secret, and each
pod mounts those of its role. On one host and on Ray they are in the run folder. Next: `rpc.transport.tls` and
cpp/net/tls_session.h check them.

    ca.crt  ROLE.crt  ROLE.key ...       all files of a job
    ca.crt  tls.crt  tls.key             what a process sees (`of_role`): its `Settings.tls`

The authority's key is discarded after signing, so no process can join later and no key can be stolen. Certificates are
valid for ten years. To use shorter ones, replace the files: processes read them for every new connection, and open
connections stay open.
"""

import datetime
import ipaddress
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.rpc.transport.tls import AUTHORITY, CERTIFICATE, KEY, Identity

ROLES: tuple[str, ...] = tuple(kind.value for kind in RoleKind)
LIFE = datetime.timedelta(days=3650)
EARLY = datetime.timedelta(hours=1)
"""Certificates are valid from this much before their creation, because clocks of hosts differ."""


def make(
    job: str,
    *,
    at: datetime.datetime,
    life: datetime.timedelta = LIFE,
    roles: Sequence[str] = ROLES,
    hosts: Sequence[str] = (),
) -> dict[str, bytes]:
    """Make an authority and one certificate per role. `at`: the time now; `hosts`: extra names, for clients that check
    only those.
    """
    key, name = _new_key(), _name(job, "authority")
    unsigned = _unsigned(name, name, key, at, at + LIFE).add_extension(
        _x509().BasicConstraints(ca=True, path_length=0), critical=True
    )
    authority = _signed(_with_usage(unsigned, key, signs=True), key)
    files = {AUTHORITY: _pem(authority)}
    for role in roles:
        files |= _leaf(authority, key, Identity(job, role), hosts, at=at, until=at + life)
    return files


def of_role(files: Mapping[str, bytes], role: str) -> dict[str, bytes]:
    if role not in (known := roles_of(files)):
        raise errors.UnknownName("role", role, known)
    return {AUTHORITY: files[AUTHORITY], CERTIFICATE: files[f"{role}.crt"], KEY: files[f"{role}.key"]}


def roles_of(files: Mapping[str, bytes]) -> list[str]:
    return [name.removesuffix(".key") for name in files if name.endswith(".key")]


def lay_out(files: Mapping[str, bytes], root: pathlib.Path) -> None:
    """Write one folder per role below `root`, readable by this user only."""
    for role in roles_of(files):
        folder = folder_of(root, role)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in of_role(files, role).items():
            part = folder / f"{name}.part"
            part.unlink(missing_ok=True)
            part.touch(mode=0o600)
            part.write_bytes(content)
            part.replace(folder / name)


def folder_of(root: pathlib.Path, role: str) -> pathlib.Path:
    return root / role


def _leaf(
    authority: Any,
    signer: Any,
    whose: Identity,
    hosts: Sequence[str],
    *,
    at: datetime.datetime,
    until: datetime.datetime,
) -> dict[str, bytes]:
    x509, key = _x509(), _new_key()
    unsigned = _unsigned(_name(*whose), authority.subject, key, at, until)
    unsigned = unsigned.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    uses = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    unsigned = unsigned.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(whose.uri), *map(_host, hosts)])
    unsigned = _with_usage(unsigned.add_extension(names, critical=False), signer, signs=False)
    return {f"{whose.role}.crt": _pem(_signed(unsigned, signer)), f"{whose.role}.key": _key_pem(key)}


def _host(host: str) -> Any:
    try:
        return _x509().IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return _x509().DNSName(host)


def _unsigned(subject: Any, issuer: Any, key: Any, at: datetime.datetime, until: datetime.datetime) -> Any:
    x509 = _x509()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _with_usage(unsigned: Any, signer: Any, *, signs: bool) -> Any:
    x509 = _x509()
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return unsigned.add_extension(usage, critical=True).add_extension(by, critical=False)


def _signed(unsigned: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return unsigned.sign(key, hashes.SHA256())


def _name(job: str, what: str) -> Any:
    oid, attribute = _x509().oid.NameOID, _x509().NameAttribute
    return _x509().Name([attribute(oid.ORGANIZATION_NAME, f"springtide {job}"[:64]), attribute(oid.COMMON_NAME, what)])


def _new_key() -> Any:
    _x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: Any) -> bytes:
    written: bytes = certificate.public_bytes(_serialization().Encoding.PEM)
    return written


def _key_pem(key: Any) -> bytes:
    forms = _serialization()
    written: bytes = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    return written


def _serialization() -> Any:
    from cryptography.hazmat.primitives import serialization

    return serialization


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise errors.BadInput(
            "certificates of a job are made by the package cryptography; install it with: pip install 'springtide[tls]'"
        ) from None
    return x509
