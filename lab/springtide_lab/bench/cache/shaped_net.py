"""Network namespaces joined by a switch whose links have a given speed: a cluster's network on one machine.

In: names of members, Gbit/s. Out: `Net`: an address a member, and the words to start a process there with. Needs root,
`ip` and `tc`; `refusal()` says why not. Every member has one link to the switch, shaped both ways (token bucket), so a
server that many workers talk to is as much of a bottleneck as it is in a cluster. Next: `bench cache`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

from springtide_lab.bench.core import peers

BURST_S = 0.002  # a link of 1 Gbit/s passes bursts of 250 kB; the kernel's segments have 64 kB
LEAST_BURST = 128 << 10
QUEUE_S = 0.05


def shaping(device: str, gbit: float) -> list[str]:
    """Arguments of `tc` that limit a device to this speed with a token bucket, in the namespace of the device."""
    bits = gbit * 1e9
    burst, queue = max(int(bits / 8 * BURST_S), LEAST_BURST), int(bits / 8 * QUEUE_S)
    bucket = ["rate", f"{bits:.0f}bit", "burst", str(burst), "limit", str(queue)]
    return ["qdisc", "replace", "dev", device, "root", "tbf", *bucket]


def refusal() -> str | None:
    """Why no such network can be made here; None: it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) not found"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Net(["probe"], gbit=1.0):
            return None
    except peers.PeerFailed as error:
        return str(error)


class Net:
    """Members on a switch. Use as a context; links can be made faster and slower while it lives."""

    def __init__(self, members: Sequence[str], *, gbit: float) -> None:
        self._prefix = f"st{os.getpid()}"
        self._members = list(members)
        self.gbit = gbit

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in [*self._members, "switch"]:
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True)

    def address(self, member: str) -> str:
        return f"10.77.0.{self._members.index(member) + 1}"

    def inside(self, member: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(member)]

    def shape(self, gbit: float) -> None:
        for number, member in enumerate(self._members):
            for space, device in ((self._space(member), "eth0"), (self._space("switch"), f"port{number}")):
                _do("tc", "-n", space, *shaping(device, gbit))
        self.gbit = gbit

    def carried(self, member: str) -> tuple[int, int]:
        """Bytes that came to it and went from it so far."""
        told = _do("ip", "-n", self._space(member), "-j", "-s", "link", "show", "eth0")
        counts = json.loads(told)[0]["stats64"]
        return counts["rx"]["bytes"], counts["tx"]["bytes"]

    def _build(self) -> None:
        switch = self._space("switch")
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, member in enumerate(self._members):
            space, port = self._space(member), f"port{number}"
            _do("ip", "netns", "add", space)
            _do("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            _do("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", space, "addr", "add", f"{self.address(member)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", space, "link", "set", device, "up")
        self.shape(self.gbit)

    def _space(self, member: str) -> str:
        return f"{self._prefix}-{member}"


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise peers.PeerFailed(f"`{' '.join(words)}`: {done.stderr.strip() or 'no word'}")
    return done.stdout
