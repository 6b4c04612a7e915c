"""Users and passwords for a Kafka broker with SASL.

In: a mechanism. Out: settings of a broker with one user besides itself (`broker`), commands for ZooKeeper (`scram`),
and librdkafka options for the user (`options`). Needs a broker since 0.10.2: the broker of `make setup-extra` supports
only Kerberos. Next: kafka_broker.py.
"""

from dataclasses import dataclass

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
