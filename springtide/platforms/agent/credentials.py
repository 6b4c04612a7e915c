"""Creates a certificate authority for one job, and a certificate for each kind of role, in memory.

All files of a job: `ca.crt`, `ROLE.crt`, `ROLE.key`. Files that a process gets (`of_role`): `ca.crt`, `tls.crt`,
`tls.key`. The authority's key is discarded after signing, so nobody can create further certificates for the job.
"""

import datetime
import ipaddress
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from springtide import errors, private_files
from springtide.domain.core.roles import RoleKind
from springtide.rpc.transport.tls import AUTHORITY, CERTIFICATE, KEY, Identity

ROLES: tuple[str, ...] = tuple(kind.value for kind in RoleKind)
LIFE = datetime.timedelta(days=3650)
EARLY = datetime.timedelta(hours=1)
"""Certificates are valid from this long before their creation, because the clocks of hosts differ."""


def make(
    job: str,
    *,
    at: datetime.datetime,
    life: datetime.timedelta = LIFE,
    roles: Sequence[str] = ROLES,
    hosts: Sequence[str] = (),
) -> dict[str, bytes]:
    """Make an authority and one certificate per role. `at` is the current time. `hosts` are host names or addresses to
    add to every role's certificate, for clients that check them."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise errors.BadInput(
            "TLS needs the package cryptography, which makes certificates; install it: pip install 'springtide[tls]'"
        ) from None
    signer = ec.generate_private_key(ec.SECP256R1())
    files = {AUTHORITY: _certificate(Identity(job, "authority"), signer.public_key(), signer, at, at + LIFE)}
    for role in roles:
        key = ec.generate_private_key(ec.SECP256R1())
        files[f"{role}.crt"] = _certificate(Identity(job, role), key.public_key(), signer, at, at + life, hosts)
        files[f"{role}.key"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return files


def of_role(files: Mapping[str, bytes], role: str) -> dict[str, bytes]:
    if role not in (known := roles_of(files)):
        raise errors.UnknownName("role", role, known)
    return {AUTHORITY: files[AUTHORITY], CERTIFICATE: files[f"{role}.crt"], KEY: files[f"{role}.key"]}


def roles_of(files: Mapping[str, bytes]) -> list[str]:
    return [name.removesuffix(".key") for name in files if name.endswith(".key")]


def lay_out(files: Mapping[str, bytes], root: pathlib.Path) -> None:
    for role in roles_of(files):
        folder = root / role
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in of_role(files, role).items():
            private_files.replace(folder / name, content)


def _certificate(
    whose: Identity,
    key: Any,
    signer: Any,
    at: datetime.datetime,
    until: datetime.datetime,
    hosts: Sequence[str] | None = None,
) -> bytes:
    """Sign a certificate for this public key. `hosts` is None for the authority's own certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    def name(what: str) -> x509.Name:
        organization = x509.NameAttribute(x509.oid.NameOID.ORGANIZATION_NAME, f"springtide {whose.job}"[:64])
        return x509.Name([organization, x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, what)])

    signs = hosts is None
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )
    unsigned = (
        x509.CertificateBuilder()
        .subject_name(name(whose.role))
        .issuer_name(name("authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if hosts is not None:
        oids = x509.oid.ExtendedKeyUsageOID
        names = [x509.UniformResourceIdentifier(whose.uri), *map(_host, hosts)]
        unsigned = unsigned.add_extension(x509.ExtendedKeyUsage([oids.SERVER_AUTH, oids.CLIENT_AUTH]), critical=False)
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return unsigned.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
