"""Parse kafka://host:port[,host:port]/topic?option=value into brokers, topic and options.

In: the user's URL. Out: an `Address` with settings for librdkafka. Its `shown` is the URL without secrets, for cards,
logs and status. Secrets belong in a file (`?config=client.properties`), which every process reads itself. Next:
stream.py.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from springtide import errors, file_input
from springtide.domain.core.redaction import HIDDEN, is_secret

PORT = 9092
OURS = {
    "enable.auto.commit": "the job itself knows what it has trained",
    "enable.auto.offset.store": "the job itself knows what it has trained",
    "auto.offset.reset": "say it with springtide.stream(start=...)",
    "enable.partition.eof": "it is always on",
    "bootstrap.servers": "they are the hosts of the URL",
}
"""Options that a user cannot set, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a topic. `options` has librdkafka's names. The repr leaves options out, because they may contain
    secrets.
    """

    servers: str
    topic: str
    shown: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def settings(self, usual: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a client: the defaults, overridden by the user's options."""
        return {"bootstrap.servers": self.servers, "client.id": "springtide", **usual, **self.options}


def parse(url: str) -> Address:
    """Parse a URL, and the file that it may name. BadInput names the wrong part, without showing a secret."""
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme != "kafka" or not hosts or not topic or "/" in topic:
        raise errors.BadInput(f"{hide(url)!r} is no Kafka topic: write kafka://host:{PORT}[,host:{PORT}]/topic")
    options = dict(_option(name, value, url) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    if file := options.pop("config", None):
        options = {**read_options(pathlib.Path(file)), **options}
    if "@" in parts.netloc:
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        options |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    if "sasl.username" in options and not options.get("security.protocol", "").lower().startswith("sasl"):
        raise errors.BadInput(
            f"{hide(url)!r} has a user, but does not say how to tell the broker: add security.protocol=SASL_SSL (or "
            "SASL_PLAINTEXT, where nobody listens) and sasl.mechanism, such as SCRAM-SHA-512 or PLAIN"
        )
    for name in options.keys() & OURS.keys():
        raise errors.BadInput(f"{name!r} cannot be set for a stream: {OURS[name]}")
    return Address(servers=_servers(hosts, url), topic=topic, shown=hide(url), options=options)


def hide(url: str) -> str:
    """Return the URL with every secret replaced."""
    parts = urlsplit(url)
    at = parts.netloc.rpartition("@")
    hosts = f"{at[0].partition(':')[0]}:{HIDDEN}@{at[2]}" if ":" in at[0] else parts.netloc
    pairs = [
        (name, HIDDEN if is_secret(name) else value) for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    query = "&".join(f"{quote(name)}={quote(value, safe='/:,')}" for name, value in pairs)
    return f"{parts.scheme}://{hosts}{parts.path}" + (f"?{query}" if query else "")


def read_options(file: pathlib.Path) -> dict[str, str]:
    """Read options from a file in the format of Kafka's tools: `name=value` lines; # begins a comment."""
    options: dict[str, str] = {}
    for number, line in enumerate(file_input.read(file.expanduser(), what="options of Kafka").splitlines(), start=1):
        name, sign, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not sign:
            raise errors.BadInput(f"{file}, line {number}: no '=' in it; a line is `option=value`")
        options[name.strip()] = value.strip()
    return options


def _option(name: str, value: str, url: str) -> tuple[str, str]:
    if not value:
        raise errors.BadInput(f"the option {name!r} of {hide(url)!r} has no value; write {name}=VALUE, or leave it out")
    return name, value


def _servers(hosts: str, url: str) -> str:
    servers = []
    for host in hosts.split(","):
        name, sign, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not sign:
            name, port = host, str(PORT)
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise errors.BadInput(f"{host!r} in {hide(url)!r} is no broker: write host:port, such as broker-1:{PORT}")
        servers.append(f"{name}:{port}")
    return ",".join(servers)
