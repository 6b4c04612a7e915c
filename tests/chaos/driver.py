"""Runs one chaos job with `springtide run`, and lets a schedule follow its batches and events.

In: a folder, a mode. Out: `ChaosJob`: processes by role, trained batches, events, and the gate that holds the script
back (`script.py`). Each job has its own network, with only a loopback, and its own /dev/shm, where root may make them.
"""

import atexit
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import numpy as np

from springtide.rpc.transport import addresses
from springtide.telemetry import events
from springtide.testing.cluster import is_ours
from tests.chaos.schedule import BATCH, BATCHES, HELD_BACK
from tests.process import counting, group_counting, running, stream_counting

NAME = "chaos"
MARK = "CHAOS_RUN"
"""Variable in the environment of every process of a run: its folder."""
PATIENCE_S = 480.0
"""Longest wait for training and for the end of a job. A starved machine takes minutes to start processes."""
EVENT_S = 8.0
"""Longest wait for an event of a schedule. The job may be unable to log one that it was drawn to wait for."""
BREATH_S = 1.5
"""Longest duration of a fault that prevents training."""
LOOK_S = 0.02
ALONE = 'ip link set lo up && mount --make-rprivate / && mount -t tmpfs chaos-shm /dev/shm && exec "$@"'


SOURCES = [running.ROOT / "tests/process/clock_shift.c", pathlib.Path(__file__).with_name("slow_disk.c")]
PRELOADS = {"clock_shift": "clock", "slow_disk": "slow disk"}
"""Libraries that are loaded into each process of a job, and the fault that needs the library."""


class JobHangs(AssertionError):
    """The job did not end, or trained nothing more."""


class JobEnded(AssertionError):
    """The job was over before its last fault."""


class ChaosJob:
    """One job over several commands: a job that is killed as a whole continues with `--resume`."""

    settings = ("--heartbeat", "0.2", "--silence", "3", "--checkpoint-every", "0.5")

    def __init__(self, folder, mode, seed, *, kinds=frozenset(), topic=None):
        """`kinds`: faults for which the job must be prepared. `topic`: makes records in Kafka; its URL and the
        records.
        """
        self.folder, self.mode, self.seed, self.kinds = folder, mode, seed, kinds
        self.chance = random.Random(seed)
        self.run, self.generation, self.commands, self._mounts = NAME, 1, [], []
        self.stopped = {}  # processes that are stopped, by role
        (folder / "batches").touch()
        self.place = self._disk() if "full disk" in kinds else None
        self.ids = self._records(topic)
        (folder / "script.py").write_bytes(pathlib.Path(__file__).with_name("script.py").read_bytes())

    def _records(self, topic):
        rng = np.random.default_rng(self.seed)
        self._url = ""
        if self.mode.source in ("map", "iterable"):
            ids = counting.draw(rng, BATCHES * BATCH)
            np.save(self.folder / "ids.npy", ids)
            return ids
        if self.mode.source == "kafka":
            self._url, records = topic(BATCHES * BATCH)
            return records
        producer = stream_counting.Producer(self.folder, partitions=3, seed=self.seed)
        producer.append(BATCHES * BATCH)
        producer.seal()
        self._url = f"log://{self.folder}/log"
        return producer.records

    def _disk(self):
        """Put the run folder on a small disk of its own."""
        place = self.folder / ".springtide"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "chaos-disk", place], check=True)
        return place

    @property
    def command(self):
        return self.commands[-1]

    @property
    def files(self):
        return self.folder / ".springtide" / "runs" / self.run

    def start(self, *more):
        """Start the job, or start it again with `--resume`."""
        mode = self.mode
        options = {
            "folder": str(self.folder),
            "source": mode.source,
            "batch": BATCH,
            "unit": mode.unit,
            "sync": mode.sync,
            "accumulate": mode.accumulate,
            "shared_memory": mode.shared_memory,
            "url": self._url,
            "stream": {"linger_s": 5.0} | ({"until": "now"} if mode.source == "kafka" else {}),
        }
        words = ["--name", NAME, "--sync", mode.sync, "--cache", mode.cache, "--seed", str(self.seed % 1000)]
        words += ["--workers", str(mode.workers), "--servers", str(mode.servers), "--no-guards", "--slots", "64"]
        words += ["--data-workers", str(mode.data_workers or "off"), "--relaunches", "1000", "--online", "off"]
        words += [*self.settings, "--history", ""]
        words += ["--tls"] * mode.tls
        words += ["--checkpoint-dir", str(self.folder / "saved")] * ("rival" in self.kinds)
        words += ["--memory", "1G"] * ("out of memory" in self.kinds)
        given = {MARK: str(self.folder), "OMP_NUM_THREADS": "1", **self._preloads()}
        self.words, self.script = words, ["script.py", "--", json.dumps(options)]
        command = ("run", *words, *more, *self.script)
        self.commands.append(running.Command(command, self.folder, given=given, before=_before(self.mode)))

    def _preloads(self):
        """Return variables for the libraries that shift the clock and slow the disk down, and their files."""
        wanted = [name for name, kind in PRELOADS.items() if kind in self.kinds]
        files = {name.upper(): str(self.folder / name) for name in wanted}
        libraries = [str(library(name)) for name in wanted]
        return files | ({"LD_PRELOAD": ":".join(libraries)} if libraries else {})

    def crash(self):
        """Kill the command; all its processes must end."""
        signal_pid(self.command.process.pid, signal.SIGKILL)
        self.command.finish()
        deadline = time.monotonic() + PATIENCE_S
        while left := left_processes(self.folder):
            assert time.monotonic() < deadline, f"processes outlive the command: {[words_of(pid) for pid in left]}"
            time.sleep(LOOK_S)

    def resume(self):
        """Continue from the newest checkpoint of the last run, or anew without one."""
        saved = self.saved()
        self.generation += 1
        if not saved:
            for path in self.folder.glob("result*.npz"):
                path.unlink()
        before, self.run = self.run, f"{NAME}-{self.generation}"
        self.start(*(["--resume", before] if saved else []))
        self.until_begun()

    def claimed(self):
        """Return True if the folder for checkpoints belongs to this run."""
        return any((self.folder / "saved").glob("*/claim-*"))

    def saved(self):
        """Return the manifests of complete checkpoints of the run, oldest first."""
        place = self.folder / "saved" / self.run if "rival" in self.kinds else self.files / "checkpoints"
        return sorted(place.glob("manifest-*.ckpt"))

    def until_begun(self):
        """Wait until the job has a master; keep its mounts visible beyond its end."""
        self.until(lambda: self.files.joinpath("master.json").exists(), "a master")
        if _before(self.mode):
            self._mounts.append(os.open(f"/proc/{self.command.process.pid}/ns/mnt", os.O_RDONLY))

    def shared_memory(self):
        """Return names in the job's own /dev/shm."""
        found = []
        for mounts in self._mounts:
            words = ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{mounts}", "ls", "/dev/shm"]
            found += subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        return found

    # --- what the job does

    def batches(self):
        return (self.folder / "batches").stat().st_size

    def gate(self, batches):
        """Let the script train this many batches; None lets it train all."""
        if batches is None:
            (self.folder / "gate").unlink(missing_ok=True)
            return
        part = self.folder / "gate.part"
        part.write_text(str(batches))
        part.replace(self.folder / "gate")

    def events(self):
        return events.read(self.files / "events.jsonl")

    def roles(self):
        """Return living processes by role, with the agent (the command itself) and its watchdog."""
        found = {str(event["role"]): int(event["pid"]) for event in self.events() if event["event"] == "joined"}
        where = addresses.read_master(self.files / "master.json")
        if where is not None:
            found["master"] = where.pid
        found = {role: pid for role, pid in found.items() if is_ours(pid)}
        pid = self.command.process.pid
        for child in running_children(pid):
            if b"watchdog.py" in _read(child, "cmdline"):
                found["watchdog"] = child
        return found | {"agent": pid}

    def of_kind(self, kind):
        """Return the living roles of a kind in order, each with its process."""
        roles = self.roles()
        return sorted((role, pid) for role, pid in roles.items() if role == kind or role.rpartition("-")[0] == kind)

    def batches_a_step(self):
        """Return how many batches of the data a step of a bsp group trains."""
        if self.mode.source != "iterable":
            return 1
        formed = (group_counting.FORMED.match(str(event.get("what"))) for event in self.events())
        return next((int(found[1]) for found in formed if found), self.mode.workers)

    def inside(self):
        """Return the words that run another command in the network of the job."""
        own = _before(self.mode) and not self.over
        return ["nsenter", "-t", str(self.command.process.pid), "-n"] if own else []

    # --- waiting

    @property
    def over(self):
        return self.command.process.poll() is not None

    def until(self, true, what, *, within_s=PATIENCE_S):
        """Wait for a condition. Return False after that time; raise JobEnded if the job ends first."""
        deadline = time.monotonic() + within_s
        while not true():
            if self.over:
                raise JobEnded(f"the job was over before: {what}")
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def until_trained(self, batches):
        """Train this many more batches, if the schedule allows it."""
        target = min(self.batches() + batches, self.most)
        self.gate(target)
        if not self.until(lambda: self.batches() >= target, f"{target} batches"):
            raise JobHangs(f"{self.batches()} of {target} batches are trained after {PATIENCE_S:g} s")

    def breathe(self, batches):
        """Train so many batches more while a fault lasts; a second is enough if the fault prevents it."""
        target = min(self.batches() + batches, self.most)
        self.gate(target)
        self.until(lambda: self.batches() >= target, "batches during a fault", within_s=BREATH_S)

    def until_event(self, kind):
        """Wait for the next event of this kind while the job trains as far as the schedule allows; return False if none
        comes."""
        before = self._count(kind)
        self.gate(self.most)
        if kind == "checkpoint":
            self.until(lambda: self.batches() > 0, "the first batch")
        return self.until(lambda: self._count(kind) > before, kind, within_s=EVENT_S)

    def _count(self, kind):
        return sum(event["event"] == kind for event in self.events())

    @property
    def most(self):
        """Batches that may be trained before the last fault."""
        return int(BATCHES * (1 - HELD_BACK))

    def finish(self):
        """Open the gate and wait for the end; return the exit code and the output."""
        self.wake_all()
        self.gate(None)
        return self.wait_over()

    def wait_over(self):
        deadline = time.monotonic() + PATIENCE_S
        while not self.over:
            if time.monotonic() > deadline:
                raise JobHangs(f"not over after {PATIENCE_S:g} s, with {self.batches()} batches trained")
            time.sleep(LOOK_S)
        code, out = self.command.finish()
        return code, out, self.command.rest()

    # --- ends

    def wake_all(self):
        for pid in list(self.stopped.values()):
            wake(pid)
        self.stopped.clear()

    def close(self):
        self.wake_all()
        for command in self.commands:
            command.close()
        if self.place is not None:
            shutil.copytree(self.place, self.folder / "disk")
            subprocess.run(["umount", "--lazy", self.place], check=True)
        for pid in left_processes(self.folder):
            signal_pid(pid, signal.SIGKILL)
        while self._mounts:
            os.close(self._mounts.pop())


def signal_pid(pid, number):
    """Send a signal; return False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wake(pid):
    signal_pid(pid, signal.SIGCONT)


def running_children(pid):
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, path.read_text().split())
        except OSError:
            continue


def left_processes(folder):
    """Return living processes of the run in this folder, by their environment."""
    mark = f"{MARK}={folder}".encode()
    pids = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if mark in _read(pid, "environ").split(b"\0") and running.alive(pid)]


def words_of(pid):
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:150]


def _read(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@functools.cache
def library(name):
    """Compile a library for all runs of this process."""
    source = next(path for path in SOURCES if path.stem == name)
    made = pathlib.Path(tempfile.mkdtemp(prefix="chaos-library-")) / f"{name}.so"
    atexit.register(shutil.rmtree, made.parent, ignore_errors=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@functools.cache
def private():
    """True if jobs can have their own network and /dev/shm here."""
    done = subprocess.run([*UNSHARE, "sh", "-c", ALONE, "sh", "true"], capture_output=True)
    return done.returncode == 0


UNSHARE = ["unshare", "--net", "--mount"]


def _before(mode):
    # a broker of Kafka listens on the machine's loopback, which the job must reach
    return [*UNSHARE, "sh", "-c", ALONE, "sh"] if private() and mode.source != "kafka" else []


def stacks(folder):
    """Return the stacks of the processes that an aborted run has left."""
    told = []
    for pid in left_processes(folder):
        told.append(f"\n{pid} {words_of(pid)}\n{_read(pid, 'stack').decode(errors='replace')}")
    return "".join(told)
