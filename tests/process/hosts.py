"""Simulates hosts on one machine with Linux namespaces: each has its own network, processes, shared memory and disk.

In: names, a folder. Out: `Hosts`, with an address per host and a command prefix to start processes on it. A test can
kill and restart hosts, cut and restore cables, and move names between hosts. Needs root and Linux namespaces;
`refusal()` explains why hosts are impossible. Next: `hosted_jobs` runs a job on them.

A host is the first process of its own namespaces. It ends when its pipe closes, and everything on the host ends with
it.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Self

from springtide import errors
from springtide_lab.bench.cache import cache

SETUP = """
set -e
mount --make-rprivate /
mkdir -p "$1"
mount -t tmpfs -o size=2g springtide-disk "$1"
mount -t tmpfs -o size=64m springtide-shm /dev/shm
mount --bind "$2" /etc/hosts
hostname "$3"
ip link set lo up
echo ready
exec cat >/dev/null
"""
NOBODY = "02:00:00:00:00:ff"  # an unused address: frames to it are lost, as on a cut cable
START_S = 60.0


def refusal() -> str | None:
    """Return why hosts are impossible here; None if they are possible."""
    if missing := [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} not found"
    if os.geteuid() != 0:
        return "namespaces need root"
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts(["probe"], pathlib.Path(folder)):
            return None
    except errors.JobFailed as error:
        return str(error)


class Hosts:
    """Simulated hosts, as a context manager. Each host has a private folder at the path `disk`."""

    def __init__(self, names: Sequence[str], folder: pathlib.Path) -> None:
        self.names = list(names)
        self.disk = folder / "disk"
        self._folder, self._file = folder, folder / "etc-hosts"
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._first: dict[str, int] = {}
        self._called: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._write_names()
            self._boot("switch")
            self._inside("switch", "ip", "link", "add", "bridge", "type", "bridge")
            self._inside("switch", "ip", "link", "set", "bridge", "up")
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self._hosts):
            self.kill(name)

    def address(self, name: str) -> str:
        """Return the host's IP address, which never changes."""
        return f"10.88.0.{self.names.index(name) + 1}"

    def start(self, name: str) -> None:
        """Start a host with an empty disk."""
        self._boot(name)
        number, first = self.names.index(name), str(self._first[name])
        # a fixed MAC address, because other hosts may have cached it
        port, card = f"port{number}", f"02:00:00:00:01:{number:02x}"
        with contextlib.suppress(errors.JobFailed):
            # the kernel may be slow to remove the port of a dead host
            self._inside("switch", "ip", "link", "del", port)
        ours = ["type", "veth", "peer", "name", "eth0", "address", card, "netns", first]
        self._inside("switch", "ip", "link", "add", port, *ours)
        self._inside("switch", "ip", "link", "set", port, "master", "bridge", "up")
        self._inside(name, "ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self._inside(name, "ip", "link", "set", "eth0", "up")

    def kill(self, name: str) -> None:
        """Kill a host with its processes, its disk and its end of the cable, without a shutdown."""
        host = self._hosts.pop(name, None)
        if host is not None:
            host.kill()  # ends the first process of the namespace, and with it all others
            host.wait()
            for pipe in (host.stdin, host.stdout):
                if pipe is not None:
                    pipe.close()

    def up(self, name: str) -> bool:
        return name in self._hosts

    def inside(self, name: str) -> list[str]:
        """Return the command prefix that runs a command on a host, in this process's folder."""
        enter = ["nsenter", "-t", str(self._first[name]), "-m", "-n", "-p", "-i", "-u"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', os.getcwd()]

    def network(self, name: str) -> int:
        """Return a descriptor of the host's network for a thread to enter; the caller closes it."""
        return os.open(f"/proc/{self._first[name]}/ns/net", os.O_RDONLY)

    def put(self, name: str, path: pathlib.Path, content: bytes) -> None:
        """Write a file on a host's disk, readable by its owner only."""
        done = subprocess.run(
            [*self.inside(name), "sh", "-c", 'umask 077 && mkdir -p "$(dirname "$0")" && cat > "$0"', str(path)],
            input=content,
            capture_output=True,
        )
        if done.returncode:
            raise errors.JobFailed(f"{path} on {name}: {done.stderr.decode().strip()}")

    def call(self, alias: str, name: str) -> None:
        """Point the name `alias` to this host for all hosts, as a cluster's DNS does."""
        self._called[alias] = name
        self._write_names()

    def forget(self, alias: str) -> None:
        self._called.pop(alias, None)
        self._write_names()

    def cut(self, one: str, other: str) -> None:
        """Drop all traffic between two hosts, in both directions and without an error."""
        for here, there in ((one, other), (other, one)):
            self._inside(
                here, "ip", "neigh", "replace", self.address(there), "lladdr", NOBODY, "nud", "permanent", "dev", "eth0"
            )

    def mend(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self._inside(here, "ip", "neigh", "del", self.address(there), "dev", "eth0")

    def shape(self, gbit: float) -> None:
        """Set the speed of all connected cables in both directions; a restarted host loses the setting."""
        for number, name in enumerate(self.names):
            if self.up(name):
                self._inside(name, "tc", *cache.shaping("eth0", gbit))
                self._inside("switch", "tc", *cache.shaping(f"port{number}", gbit))

    def _boot(self, name: str) -> None:
        words = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
        host = subprocess.Popen(
            [*words, "sh", "-c", SETUP, "sh", str(self.disk), str(self._file), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert host.stdout is not None and host.stderr is not None
        said = host.stdout.readline()
        if said != b"ready\n":
            host.kill()
            why = host.communicate()[1].decode().strip()
            raise errors.JobFailed(f"no host {name} can be made here: {why or 'its first process ended'}")
        host.stderr.close()
        self._hosts[name], self._first[name] = host, first_child(host.pid)

    def _inside(self, name: str, *words: str) -> None:
        done = subprocess.run(["nsenter", "-t", str(self._first[name]), "-n", *words], capture_output=True, text=True)
        if done.returncode:
            raise errors.JobFailed(f"`{' '.join(words)}` on {name}: {done.stderr.strip() or 'no word'}")

    def _write_names(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in self.names)]
        lines += [f"{self.address(name)} {alias}" for alias, name in self._called.items()]
        self._file.write_text("\n".join(lines) + "\n")  # write in place: hosts have this file mounted


def first_child(pid: int) -> int:
    """Return the first process in the namespaces of another process, once it exists."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise errors.JobFailed(f"process {pid} has no child after {START_S:g} s")
