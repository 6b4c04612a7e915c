"""A whole job over TLS counts exactly with a killed server and sends nothing in plaintext."""

import contextlib
import secrets
import socket
import threading
import time

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH = 32
ALL_PROTOCOLS, ETHERNET = 3, 14


class Sniffer:
    """Captures every packet of this host's loopback network; needs the right to do so."""

    def __init__(self, *words: bytes) -> None:
        self._words, self.read, self.packets = words, set(), 0
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
        self._sock.bind(("lo", 0))
        self._sock.settimeout(0.1)
        self._heard, self._over = threading.Condition(), False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                packet = self._sock.recv(1 << 16)
                with self._heard:
                    self.packets += 1
                    self.read |= {word for word in self._words if word in packet[ETHERNET:]}
                    self._heard.notify_all()

    def close(self) -> None:
        """Listens no more."""
        self._over = True
        self._thread.join()
        self._sock.close()

    def hears(self, word: bytes) -> bool:
        """Send a marker until the sniffer has captured it, and so everything sent before it."""
        deadline = time.monotonic() + 120
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as saying, self._heard:
            while word not in self.read and time.monotonic() < deadline:
                saying.sendto(word, ("127.0.0.1", 9))  # again: the kernel drops packets where many come at once
                self._heard.wait_for(lambda: word in self.read, timeout=1.0)
            return word in self.read


@pytest.mark.timeout(400)
def test_tls_job_counts_exactly_with_a_killed_server_and_encrypts_all_traffic(tmp_path):
    name, end = f"table_{secrets.token_hex(8)}", secrets.token_bytes(16)
    ids = counting.draw(np.random.default_rng(5), 150 * BATCH - 5)
    script = counting.SCRIPT.replace("self.small", f"self.{name}").replace("small.weight", f"{name}.weight")
    counting.write(tmp_path, ids, script)
    spec = JobSpec(
        name="secret-counts",
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        backoff_s=0.0,
        slots=128,
        checkpoints=CheckpointRules(every_s=0.5, mirror=True),
    )
    try:
        sniffer = Sniffer(name.encode(), b"secret-counts", end)
    except PermissionError:
        pytest.skip("only root may listen to a network")
    with (
        contextlib.closing(sniffer),
        LocalCluster(
            tmp_path / "count.py",
            [tmp_path, 1, BATCH, 0.5],
            spec=spec,
            folder=tmp_path / "runs",
            tls=True,
            settings={"shared_memory": "0"},
        ) as job,
    ):
        job.until(lambda status: status.checkpoints.number and status.samples > 0)
        assert (job.files.tls / "worker/tls.key").stat().st_mode & 0o077 == 0
        assert job.kill("server-1")
        counting.hurry(tmp_path)
        status = job.wait()
        assert sniffer.hears(end) and sniffer.packets > 1000
    assert status.phase is JobPhase.FINISHED, status
    assert counting.differences(tmp_path, ids, epochs=1, batch=BATCH) == {}
    assert any(event["event"] == "ready" and event["role"] == "server-1" for event in job.story)
    assert sniffer.read == {end}
    assert not job.files.tls.exists()  # certificates go with the job
