"""Certificates for a Kafka broker with TLS, and for its clients.

In: a folder. Out: files in the folder, and settings of a broker that requires client certificates (`broker`). `options`
returns librdkafka options for a valid client, or for a `stranger` with a certificate of another authority. Next:
kafka_broker.py.
"""

import datetime
import pathlib
from collections.abc import Mapping

from springtide.platforms.agent import credentials
from springtide.rpc.transport.tls import AUTHORITY

PASSWORD = "only-for-tests"
"""Password of the broker's two stores, which Java requires."""
LIFE = datetime.timedelta(days=1)
HERE = ("127.0.0.1", "localhost")
PROTOCOL = "SSL"
"""Kafka's name for TLS."""


class KafkaTls:
    """An authority with a broker certificate for 127.0.0.1 and a client certificate, and a client certificate of
    another authority.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC)
        ours = credentials.make("kafka", at=now, life=LIFE, roles=("broker", "client"), hosts=HERE)
        others = credentials.make("elsewhere", at=now, life=LIFE, roles=("stranger",), hosts=HERE)
        others.pop(AUTHORITY)
        for name, content in {**ours, **others}.items():
            (folder / name).write_bytes(content)
        self._write_stores(ours)

    def broker(self) -> list[str]:
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
        ]

    def options(self, name: str = "client") -> dict[str, str]:
        """Return the options of this client, by librdkafka's names."""
        return {
            "security.protocol": PROTOCOL.lower(),
            "ssl.ca.location": str(self.folder / "ca.crt"),
            "ssl.certificate.location": str(self.folder / f"{name}.crt"),
            "ssl.key.location": str(self.folder / f"{name}.key"),
        }

    def _write_stores(self, files: Mapping[str, bytes]) -> None:
        """Write the Java key store and trust store of the broker."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import pkcs12

        key = serialization.load_pem_private_key(files["broker.key"], None)
        own, authority = (x509.load_pem_x509_certificate(files[name]) for name in ("broker.crt", AUTHORITY))
        locked = serialization.BestAvailableEncryption(PASSWORD.encode())
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        kept = pkcs12.serialize_key_and_certificates(b"broker", key, own, [authority], locked)
        believed = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(authority, b"ca")], locked)
        (self.folder / "keystore").write_bytes(kept)
        (self.folder / "truststore").write_bytes(believed)
