"""Certificates, users and passwords for a Kafka broker with TLS or SASL (`springtide_lab.testing.kafka_broker`).

SASL needs a broker since 0.10.2: the broker of `make setup-extra` supports only Kerberos.
"""

import datetime
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass

from springtide.platforms.agent import credentials
from springtide.rpc.transport.tls import AUTHORITY

BROKER, BROKERS_PASSWORD = "broker", "only-for-brokers"
"""User and password of the broker itself."""
PLAIN = "PLAIN"
_JAAS = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSasl:
    """One user with one mechanism."""

    mechanism: str = PLAIN
    user: str = "tide"
    password: str = "only=for+tests"
    """Password with characters that are special in URLs and option files."""

    def protocol(self, *, tls: bool) -> str:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"

    def broker(self, *, tls: bool) -> list[str]:
        """Return the settings of the broker, which uses PLAIN for itself."""
        listener = f"listener.name.{self.protocol(tls=tls).lower()}"
        known = f'user_{BROKER}="{BROKERS_PASSWORD}"'
        if self.mechanism == PLAIN:
            known += f' user_{self.user}="{self.password}"'
        own = f'username="{BROKER}" password="{BROKERS_PASSWORD}"'
        mechanisms = dict.fromkeys((PLAIN, self.mechanism))
        lines = [
            f"sasl.enabled.mechanisms={','.join(mechanisms)}",
            f"sasl.mechanism.inter.broker.protocol={PLAIN}",
            f"{listener}.plain.sasl.jaas.config={_JAAS[PLAIN]} required {own} {known};",
        ]
        if self.mechanism != PLAIN:
            lines.append(f"{listener}.{self.mechanism.lower()}.sasl.jaas.config={_JAAS[self.mechanism]} required;")
        return lines

    def scram(self) -> list[str]:
        """Return arguments of `kafka.admin.ConfigCommand` that create the user; none if the settings define it."""
        if self.mechanism == PLAIN:
            return []
        what = f"{self.mechanism}=[password={self.password}]"
        return ["--alter", "--add-config", what, "--entity-type", "users", "--entity-name", self.user]

    def options(self, *, tls: bool) -> dict[str, str]:
        """Return the client options, by librdkafka's names."""
        return {
            "security.protocol": self.protocol(tls=tls).lower(),
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }


PASSWORD = "only-for-tests"
"""Password of the broker's two stores, which Java requires."""
LIFE = datetime.timedelta(days=1)
HERE = ("127.0.0.1", "localhost")


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
            "security.protocol": "ssl",
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
