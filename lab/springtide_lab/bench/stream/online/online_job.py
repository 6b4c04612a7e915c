"""A real job on a log in a folder, workers held to fractions of a core, and a producer that plays a day to it.

In: a folder, traffic by time. Out: what the job's master kept of the day (`OnlinePoint`s, its last status), and whether
every record was trained exactly once: tables count them. Used by `springtide_lab.bench.stream.online.closed_loop` and
by tests.
"""

import pathlib
import threading
import time
from collections.abc import Callable

import numpy as np

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.domain.core.roles import RoleKind
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.guard_rules import GuardRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.online_job import OnlineJob
from springtide.testing.cluster import LocalCluster

PARTITIONS, BATCH, KEYS = 8, 64, 997
EVERY_S = 0.05  # between two appends

SCRIPT = """
import pathlib, sys, time
import numpy as np
import torch
from torch import nn
import springtide as st

torch.set_num_threads(1)
folder, url = pathlib.Path(sys.argv[1]), sys.argv[2]
batch, work, pause_s = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])


class Counter(nn.Module):  # zeros, SGD at rate 1, a gradient of -1 an occurrence: rows count what was trained
    def __init__(self):
        super().__init__()
        self.often = st.EmbeddingBag(1, init="zeros")
        self.seen = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.often(x[:, None])[:, 0].sum() + self.seen.sum() * len(x)


def decode(bodies):
    return torch.from_numpy(np.frombuffer(b"".join(bodies), dtype=np.int64).copy())


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
data = st.stream(url, decode=decode, linger_s=0.2)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=batch)
a, b = torch.ones(128, 128), torch.ones(128, 128)
for x in batches:
    for _ in range(work):  # what a real model would compute
        a @ b
    time.sleep(pause_s)
    optimizer.zero_grad()
    (-model(x)).backward()
    optimizer.step()
if not job.leaving:
    state = model.state_dict()
    part = folder / f"counts-{job.rank}.npz"
    np.savez(part, keys=state["often.keys"], rows=state["often.rows"], seen=state["seen"])
    part.rename(folder / "counts.npz")
"""


class Producer:
    """Appends records to a new log, as many a second as traffic says; knows what it has appended."""

    def __init__(
        self, folder: pathlib.Path, traffic: Callable[[float], float], *, partitions: int = PARTITIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`traffic`: records a second at a time of day; `clock`: what stamps are of."""
        self._stream = create(folder / "log", LogSettings(partitions=partitions))
        self.url = self._stream.url
        self._traffic, self._partitions, self._clock = traffic, partitions, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)  # Ctrl-C ends it too
        self.appended = 0

    def start(self) -> None:
        """Records come from now on."""
        self._thread.start()

    def seal(self) -> None:
        """That was all."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._stream.seal()
        self._stream.close()

    def _run(self) -> None:
        writer, owed, before = self._stream.writer(), 0.0, time.time()
        while not self._ended.wait(EVERY_S):
            now = time.time()
            owed, before = owed + self._traffic(now) * (now - before), now
            count = int(owed)
            owed -= count
            keys = (np.arange(self.appended, self.appended + count) % KEYS).astype(np.int64)
            for number in range(self._partitions):
                mine = keys[number :: self._partitions]
                if len(mine):
                    ends = 8 * np.arange(1, len(mine) + 1, dtype=np.int64)
                    writer.append(number, mine.tobytes(), ends, at=self._clock())
            self.appended += count
        writer.close()


class Held:
    """Workers get a whole core until they train, so that imports take no minutes, and so many from then on."""

    def __init__(self, job: LocalCluster, cpu: float) -> None:
        self._job, self._cpu = job, cpu
        self._done: set[tuple[str, int]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="held")

    def __enter__(self) -> "Held":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            for member in self._job.status.members:
                life = (str(member.role), member.incarnation)
                trains = member.role.kind is RoleKind.WORKER and member.alive and member.joined
                if trains and life not in self._done and not self._job.over:
                    self._done.add(life)
                    self._job.throttle(life[0], self._cpu)


def job_of(
    folder: pathlib.Path, producer: Producer, online: OnlineJob, *, work: int = 0, pause_s: float = 0.0,
    cpu: float | None = 1.0, name: str = "day", workers: int = 1, checkpoint_s: float = 5.0,
) -> LocalCluster:  # fmt: skip
    """A job that counts what comes, and scales by itself."""
    script = folder / "count.py"
    script.write_text(SCRIPT)
    spec = JobSpec(
        name=name, workers=workers, servers=1, worker_cpu=cpu, heartbeat_s=0.2, slots=64, online=online,
        guards=GuardRules(memory=False, servers=False), checkpoints=CheckpointRules(every_s=checkpoint_s),
    )  # fmt: skip
    arguments = [str(folder), producer.url, str(BATCH), str(work), str(pause_s)]
    return LocalCluster(script, arguments, spec=spec, folder=folder / "runs", grace_s=5.0)


def miscounted(folder: pathlib.Path, appended: int) -> int:
    """Records that were lost or trained again, as tables tell."""
    counts = np.load(folder / "counts.npz")
    held = dict(zip(counts["keys"].tolist(), counts["rows"][:, 0].tolist(), strict=True))
    wrong = 0.0
    for key in range(KEYS):
        due = len(range(key, appended, KEYS))
        wrong += abs(held.pop(key, 0.0) - due)
    return int(wrong + sum(map(abs, held.values())) + abs(float(counts["seen"][0]) - appended) * (wrong == 0))
