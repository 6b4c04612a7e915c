"""Certificates for a Kafka broker that speaks TLS only, and for those who may speak with it.

In: a folder. Out: files in it, settings of a broker that wants a certificate of every client (`broker`), and options of
librdkafka for a client that has one, or for a `stranger`, whose certificate somebody else signed (`options`). Next:
kafka_broker.py.
"""

import datetime
import ipaddress
import pathlib
from typing import Any

from springtide import errors

PASSWORD = "only-for-tests"
"""Of the broker's two stores: Java wants one."""
LIFE = datetime.timedelta(days=1)
PROTOCOL = "SSL"
"""What Kafka calls TLS."""


class KafkaTls:
    """An authority of its own, a broker's certificate for 127.0.0.1, a client's, and one by somebody else."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        ours, others = _authority("springtide tests"), _authority("somebody else")
        self._write_stores(ours)
        for name, authority in (("client", ours), ("stranger", others)):
            key, certificate = _signed(name, authority)
            (folder / f"{name}.key").write_bytes(_key_pem(key))
            (folder / f"{name}.crt").write_bytes(_pem(certificate))
        (folder / "ca.crt").write_bytes(_pem(ours[1]))

    def broker(self) -> list[str]:
        """Lines of a broker's settings."""
        stores = [
            line
            for store in ("keystore", "truststore")
            for line in (
                f"ssl.{store}.location={self.folder / store}",
                f"ssl.{store}.password={PASSWORD}",
                f"ssl.{store}.type=PKCS12",
            )
        ]
        return [
            *stores,
            f"ssl.key.password={PASSWORD}",
            "ssl.client.auth=required",
            f"security.inter.broker.protocol={PROTOCOL}",
        ]

    def options(self, name: str = "client") -> dict[str, str]:
        """What a client of that name is told, by librdkafka's names."""
        return {
            "security.protocol": PROTOCOL.lower(),
            "ssl.ca.location": str(self.folder / "ca.crt"),
            "ssl.certificate.location": str(self.folder / f"{name}.crt"),
            "ssl.key.location": str(self.folder / f"{name}.key"),
        }

    def _write_stores(self, authority: tuple[Any, Any]) -> None:
        """As Java reads them: the broker's key, and whom it believes."""
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        key, certificate = _signed("broker", authority)
        locked = BestAvailableEncryption(PASSWORD.encode())
        kept = pkcs12.serialize_key_and_certificates(b"broker", key, certificate, [authority[1]], locked)
        believed = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(authority[1], b"ca")], locked)
        (self.folder / "keystore").write_bytes(kept)
        (self.folder / "truststore").write_bytes(believed)


def _authority(name: str) -> tuple[Any, Any]:
    key = _new_key()
    unsigned = _unsigned(_name(name), _name(name), key)
    certificate = unsigned.add_extension(_x509().BasicConstraints(ca=True, path_length=0), critical=True)
    return key, _by(certificate, key)


def _signed(name: str, authority: tuple[Any, Any]) -> tuple[Any, Any]:
    """A key, and a certificate of it that is good for this host."""
    x509, key = _x509(), _new_key()
    signer, by = authority
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    unsigned = _unsigned(_name(name), by.subject, key).add_extension(here, critical=False)
    return key, _by(unsigned, signer)


def _unsigned(subject: Any, issuer: Any, key: Any) -> Any:
    x509, now = _x509(), datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFE)
        .not_valid_after(now + LIFE)
    )


def _by(unsigned: Any, signer: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return unsigned.sign(signer, hashes.SHA256())


def _new_key() -> Any:
    _x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(name: str) -> Any:
    x509 = _x509()
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    written: bytes = certificate.public_bytes(Encoding.PEM)
    return written


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    written: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return written


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise errors.MissingExtra("a Kafka broker with TLS", "tls") from None
    return x509
