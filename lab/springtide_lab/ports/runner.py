"""Run a public program as it is and in jobs: alone, on two workers and two servers, with kills, and resumed.

In: a `Program`, the folder of its package, and seeds. Out: `PortResult`, with the AUC of each run. Every run trains
the same generated clicks, whose best possible AUC is known. A job must train each sample exactly once an epoch.
"""

import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from springtide import errors, zoo
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench.core import harness, jobs
from springtide_lab.ports.program import Program

FIELDS = (0, 1, 8, 9, 13, 16)
"""Fields of the click log that the programs use as ids: large and small ones."""
NUMBERS = 4
SAMPLES, QUICK_SAMPLES = 30_000, 6_000
TEST_SHARE = 0.1
WITHIN_S = 900.0
EVERY_S = 1.0
"""Seconds between checkpoints. The interval is short, so that a killed server resumes from a recent checkpoint."""


class Runs(msgspec.Struct, frozen=True):
    """One way to run a program."""

    aucs: tuple[float, ...]
    """AUC by seed."""
    once: bool = True
    """True if every sample was trained exactly once an epoch, as the job counted."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.aucs)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.aucs) if len(self.aucs) > 1 else 0.0


class PortResult(msgspec.Struct, frozen=True):
    """The measurements of one program."""

    name: str
    package: str
    changed_lines: int
    samples: int
    best_auc: float
    """AUC of the probabilities from which the clicks were drawn."""
    runs: dict[str, Runs]
    """By way of running: "original", "alone", "2 x 2", "killed", "resumed"."""


def measure(program: Program, folder: pathlib.Path, seeds: Sequence[int], *, quick: bool = False) -> PortResult:
    program.check(folder)
    with harness.scratch() as scratch, packages(folder):
        clicks = scratch / "clicks.npz"
        trained, best = write_clicks(clicks, QUICK_SAMPLES if quick else SAMPLES)
        port = PortRuns(program, scratch, clicks, trained * program.epochs)
        ways: dict[str, Callable[[int], tuple[float, bool]]] = {
            "original": port.original,
            "alone": port.alone,
            "2 x 2": port.in_job,
            "killed": port.killed,
            "resumed": port.resumed,
        }
        found: dict[str, list[tuple[float, bool]]] = {way: [] for way in ways}
        for seed in seeds:  # alternate the ways, so that a busy machine slows all of them equally
            for way, run in ways.items():
                found[way].append(run(seed))
                harness.say(f"{program.name}, seed {seed}, {way}: AUC {found[way][-1][0]:.4f}")
    return PortResult(
        name=program.name,
        package=program.package,
        changed_lines=program.changed_lines,
        samples=trained,
        best_auc=best,
        runs={
            way: Runs(tuple(auc for auc, _ in outcomes), all(once for _, once in outcomes))
            for way, outcomes in found.items()
        },
    )


@contextmanager
def packages(folder: pathlib.Path) -> Iterator[None]:
    """Let the processes of this block import the packages in the folder, after their own."""
    before = os.environ.get("PYTHONPATH")
    # the repository's own folders come first, so that the folder of packages cannot replace Springtide
    own = [path for path in sys.path if path and pathlib.Path(path, "springtide", "__init__.py").is_file()]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *([before] if before else []), str(folder.resolve())])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def write_clicks(path: pathlib.Path, samples: int) -> tuple[int, float]:
    """Write generated clicks; return the number of training samples, and the best possible AUC of the others."""
    log = zoo.ClickLog(samples, spec=zoo.LogSpec(seed=1))
    clicks, y = log.batch(np.arange(samples))
    train, test = log.split(TEST_SHARE)
    np.savez(
        path,
        ids=clicks.sparse[:, list(FIELDS)].numpy(),
        numbers=clicks.dense[:, :NUMBERS].numpy(),
        y=y.numpy(),
        sizes=np.array(log.tables)[list(FIELDS)],
        cut=len(train),
    )
    return len(train), test.best_auc()


class PortRuns:
    """Runs of one program. Each run returns the AUC, and whether the job trained every sample exactly once per
    epoch.
    """

    def __init__(self, program: Program, folder: pathlib.Path, clicks: pathlib.Path, samples: int) -> None:
        self._program, self._folder, self._clicks, self._samples = program, folder, clicks, samples
        self._result = folder / "auc.txt"

    def original(self, seed: int) -> tuple[float, bool]:
        return self._script(self._program.text, seed)

    def alone(self, seed: int) -> tuple[float, bool]:
        return self._script(self._program.ported, seed)

    def _script(self, text: str, seed: int) -> tuple[float, bool]:
        script = self._folder / "train.py"
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, str(script), *self._arguments(seed)], cwd=self._folder, capture_output=True, text=True
        )
        if done.returncode:
            raise errors.UserCodeFailed(f"{self._program.name} failed without a job:\n{done.stderr[-2000:]}")
        return self._auc(), True

    def in_job(self, seed: int) -> tuple[float, bool]:
        with self._job(seed) as job:
            return self._finish(job)

    def killed(self, seed: int) -> tuple[float, bool]:
        """Kill a worker after a quarter of the samples, and a server after half of them."""
        with self._job(seed) as job:
            job.until(lambda status: status.samples > self._samples / 4, within_s=WITHIN_S)
            job.kill_each("worker-1")
            job.until(lambda status: status.samples > self._samples / 2, within_s=WITHIN_S)
            job.kill_each("server-1")
            return self._finish(job)

    def resumed(self, seed: int) -> tuple[float, bool]:
        """Stop the job after half of the samples, and continue in another job."""
        with self._job(seed) as job:
            job.until(lambda status: status.samples > self._samples / 2, within_s=WITHIN_S)
            rules = jobs.stop_job(job)
        with self._job(seed, rules) as job:
            return self._finish(job)

    def _job(self, seed: int, rules: CheckpointRules | None = None) -> LocalCluster:
        spec = JobSpec(
            name="port",
            workers=2,
            servers=2,
            relaunches=10,
            backoff_s=0.0,
            checkpoints=rules or CheckpointRules(every_s=EVERY_S),
        )
        self._result.unlink(missing_ok=True)
        return jobs.prepared(self._folder, self._program.ported, self._arguments(seed), spec)

    def _finish(self, job: LocalCluster) -> tuple[float, bool]:
        status = jobs.finished(job, WITHIN_S)
        return self._auc(), status.samples == self._samples

    def _arguments(self, seed: int) -> list[str]:
        return [str(self._clicks), str(seed), str(self._result)]

    def _auc(self) -> float:
        return float(self._result.read_text())
