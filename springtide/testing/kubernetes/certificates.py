"""A certificate authority that lives as long as a test, and certificates for addresses of this machine.

Out: PEM text. Used by the API server and by LocalKubelet's own small server for logs.
"""

import datetime
import ipaddress
import pathlib
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
DAYS = 2


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and who signed it."""

    ca: str
    certificate: str
    key: str

    def server_context(self, folder: pathlib.Path) -> ssl.SSLContext:
        """For a server; written to `folder`, since Python reads certificates from files only."""
        files = folder / "tls.crt", folder / "tls.key"
        files[0].write_text(self.certificate)
        files[1].touch(0o600)
        files[1].write_text(self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        return context


def make(address: str = "127.0.0.1") -> Certificate:
    """A new authority, and a certificate of it for an address and the names of an API server."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "springtide testing")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    ca = (
        _begun(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)), *map(x509.DNSName, NAMES)]
    made = (
        _begun(name, ca_name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return Certificate(ca.public_bytes(pem).decode(), made.public_bytes(pem).decode(), plain.decode())


def _begun(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
