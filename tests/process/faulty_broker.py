"""The Kafka broker of `springtide_lab.testing.kafka_broker` with faults, topics, TLS and passwords, for tests.

With `tls` the broker accepts only TLS and requires client certificates. With `sasl` it requires a user and a password
(`kafka_security`). The old broker's only SASL mechanism is Kerberos, and it has no `create_topics`: with the jars of a
newer release in `newer_jars()`, `newer=True` runs that release.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from springtide import errors
from springtide_lab.testing import kafka_broker
from springtide_lab.testing.kafka_broker import OLD_BROKER, UP_S


def newer_jars() -> pathlib.Path:
    """Return the folder for the `libs` of Apache Kafka 1.0 to 2.8, for features that the old broker lacks."""
    return pathlib.Path(sys.prefix) / "share" / "kafka-newer"


def missing_newer() -> str:
    if not any(newer_jars().glob("kafka_*.jar")):
        return f"no newer Kafka broker: put the jars of a release (1.0 to 2.8, its libs) into {newer_jars()}"
    return kafka_broker.missing()


class FaultyBroker(kafka_broker.KafkaBroker):
    """A broker that is killed, suspended and given topics."""

    def __init__(self, folder: Any, *, partitions: int = 4, tls: Any = None, sasl: Any = None, newer: bool = False):
        self._sasl, secure = sasl, tls is not None
        protocol = sasl.protocol(tls=secure) if sasl else "SSL" if secure else "PLAINTEXT"
        super().__init__(
            folder,
            partitions=partitions,
            protocol=protocol,
            settings=[*(tls.broker() if tls else []), *(sasl.broker(tls=secure) if sasl else [])],
            options={
                **({} if newer else OLD_BROKER),
                **(tls.options() if tls else {}),
                **(sasl.options(tls=secure) if sasl else {}),
            },
        )
        if newer:
            self._jars = newer_jars()

    def start(self) -> None:
        """Start the broker, initially or after `kill`; ZooKeeper then knows the user of SASL."""
        if self._broker is None and self._sasl is not None and (user := self._sasl.scram()):
            self._administer(f"let in {self._sasl.user!r}", "ConfigCommand", *user)
        if self._broker is not None:
            self._await_session_end()
        super().start()

    def kill(self) -> None:
        """Kill the broker with SIGKILL; ZooKeeper continues."""
        assert self._broker is not None, "the broker was never started"
        self._broker.kill()
        self._broker.wait()

    def _await_session_end(self) -> None:
        """Wait until ZooKeeper has forgotten the killed broker. A broker that starts before may leave its partitions
        without a leader for ever: its controller never sees that the broker was away."""

        def sessions() -> bytes:
            with socket.create_connection(("127.0.0.1", self._keeper_port), timeout=UP_S) as keeper:
                keeper.sendall(b"dump")
                return b"".join(iter(lambda: keeper.recv(1 << 16), b""))

        deadline = time.monotonic() + UP_S
        while b"/brokers/ids/" in (found := sessions()):
            assert time.monotonic() < deadline, f"ZooKeeper still has the killed broker: {found!r}"
            time.sleep(0.1)
        assert b"SessionTracker" in found, f"ZooKeeper does not tell its sessions: {found!r}"

    def stop(self) -> None:
        """Suspend the broker: connections stay open without replies, as in a broken network."""
        assert self._broker is not None, "the broker was never started"
        os.kill(self._broker.pid, signal.SIGSTOP)

    def wake(self) -> None:
        assert self._broker is not None, "the broker was never started"
        os.kill(self._broker.pid, signal.SIGCONT)

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        """Create a topic; setting names have `_` for `.` (`retention_ms="1000"`)."""
        told = [part for name, value in settings.items() for part in ("--config", f"{name.replace('_', '.')}={value}")]
        self._topics("--create", topic, "--replication-factor", "1", "--partitions", str(partitions), *told)

    def grow(self, topic: str, partitions: int) -> None:
        self._topics("--alter", topic, "--partitions", str(partitions))

    def _topics(self, what: str, topic: str, *arguments: str) -> None:
        self._administer(f"{what[2:]} the topic {topic!r}", "TopicCommand", what, "--topic", topic, *arguments)

    def _administer(self, wanted: str, tool: str, *arguments: str) -> None:
        where = ("--zookeeper", f"127.0.0.1:{self._keeper_port}")
        command = self._command(f"kafka.admin.{tool}", "128m", *where, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=UP_S, check=False)
        if done.returncode or "Error" in done.stdout:
            raise errors.BadInput(f"the broker would not {wanted}: {done.stdout}{done.stderr}")
