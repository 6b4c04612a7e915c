"""Runs chaos jobs for some time and reports violations: `make chaos SECONDS=600 SEED=1`, or `--replay` of one run.

In: a seed. Out: a line for each run, a table at the end, exit code 1 and the folders of runs with a violation. Run
number N has the seed SEED:N, from which its mode and its faults follow (`docs/design/chaos.md`).
"""

import argparse
import collections
import concurrent.futures
import itertools
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, replace

import numpy as np

from springtide_lab.testing import kafka_broker
from tests.chaos import checkers, driver, faults, modes, schedule
from tests.process.faulty_broker import FaultyBroker
from tests.process.test_kafka_jobs import fill


@dataclass
class Outcome:
    """What came of one run."""

    name: str
    mode: modes.Mode
    kinds: list[str]
    done: list[str]
    violations: list[str]
    seconds: float
    folder: pathlib.Path

    def __str__(self):
        end = "ok" if not self.violations else "VIOLATION " + " | ".join(self.violations)
        return f"{self.name} {self.seconds:.1f} s ({self.mode}): {'; '.join(self.done) or 'no fault'} -> {end}"


class Nemesis:
    """Runs of one seed, in a folder."""

    def __init__(self, seed, folder, *, sources, kinds=None):
        self.seed, self.folder, self.kinds = seed, folder, faults.possible() if kinds is None else kinds
        self.covering = modes.cover(seed, sources)
        self._references, self._lock = {}, threading.RLock()
        self._broker, self._topics = None, 0

    def close(self):
        if self._broker is not None:
            self._broker.close()

    def _topic(self, count):
        """Make a topic of Kafka with so many records; return its URL and the records."""
        with self._lock:
            if self._broker is None:
                self._broker = FaultyBroker(self.folder / "kafka", partitions=3)
                self._broker.__enter__()
            self._topics += 1
        url = self._broker.url(f"chaos-{self._topics}")
        return url, fill(url, count, partitions=3)

    def plan(self, number):
        """Return the mode and the faults of a run: they depend on the seed and the number only."""
        again, place = divmod(number, len(self.covering))
        order = list(self.covering)
        random.Random(f"{self.seed} {again}").shuffle(order)
        return order[place], schedule.draw(f"{self.seed}:{number}", order[place], self.kinds)

    def run(self, number, mode=None, planned=None):
        """Do one run; `mode` and `planned` replace what was drawn for it."""
        drawn = self.plan(number)
        mode, planned = mode or drawn[0], planned or drawn[1]
        reference = self.reference(mode) if mode.exact_bits else None
        return self._run(f"{self.seed}:{number}", mode, planned.steps, reference)

    def reference(self, mode):
        with self._lock:
            return self._reference(mode)

    def _reference(self, mode):
        """Return the model of a run without faults, with one worker and one server; it must not depend on these."""
        plain = replace(mode, workers=1, servers=1, cache="off", data_workers=0, tls=False, shared_memory=True)
        if plain not in self._references:
            outcome = self._run(f"{self.seed}:reference", plain, [], None, keep=True)
            assert not outcome.violations, str(outcome)
            self._references[plain] = dict(np.load(outcome.folder / "result.npz"))
            shutil.rmtree(outcome.folder)
        return self._references[plain]

    def _run(self, name, mode, steps, reference, *, keep=False):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name.replace(':', '-')}-", dir=self.folder))
        began, done, found = time.monotonic(), [], []
        kinds = frozenset(step.fault for step in steps)
        job = driver.ChaosJob(folder, mode, self.seed, kinds=kinds, topic=self._topic)
        try:
            job.gate(0)
            job.start()
            job.until_begun()
            try:
                for step in steps:
                    done.append(faults.inject(job, step))
                found += checkers.descriptors(job)
            except driver.JobEnded as early:
                found.append(str(early))
            found += checkers.violations(job, *job.finish(), reference)
        except Exception as error:
            done.append(f"broken off: {type(error).__name__}: {error}")
            found.append(f"{type(error).__name__}: {error}")
            (folder / "error.txt").write_text(traceback.format_exc() + driver.stacks(folder))
        finally:
            job.close()
        if not found and not keep:
            shutil.rmtree(folder)
        outcome = Outcome(
            name, mode, [step.fault for step in steps[: len(done)]], done, found, time.monotonic() - began, folder
        )
        if found:
            said = [line for command in job.commands for line in command.said]
            (folder / "outcome.txt").write_text("\n".join([str(outcome), *said, ""]))
        return outcome


def summary(outcomes, sources):
    """Return the table at the end."""
    possible = set().union(*map(modes.pairs, modes.possible(sources)))
    covered = set().union(*(modes.pairs(outcome.mode) for outcome in outcomes)) if outcomes else set()
    kinds = collections.Counter(kind for outcome in outcomes for kind in outcome.kinds)
    bad = [outcome for outcome in outcomes if outcome.violations]
    lines = [
        f"runs                {len(outcomes)}",
        f"pairs of mode       {len(covered & possible)} of {len(possible)}",
        f"faults              {sum(kinds.values())}: {', '.join(f'{k} {n}' for k, n in kinds.most_common())}",
        f"violations          {len(bad)}",
    ]
    return "\n".join([*lines, *(f"  {outcome}\n  kept in {outcome.folder}" for outcome in bad)])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no run after this time")
    parser.add_argument("--seed", type=int, default=None, help="seed of modes and faults; drawn if not given")
    parser.add_argument("--runs", type=int, default=1 << 30, help="number of runs, if the time allows")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="repeat one run")
    parser.add_argument("--folder", type=pathlib.Path, help="folder for the runs")
    given = parser.parse_args(arguments)
    if given.replay:
        seed, number = map(int, given.replay.split(":"))
        given.seed, given.first, given.runs = seed, number, 1
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="springtide-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sources = ["map", "iterable", "log", *(["kafka"] if not kafka_broker.missing() else [])]
    print(f"seed {seed}; repeat a run with --replay {seed}:NUMBER", flush=True)
    nemesis, outcomes, ends = Nemesis(seed, folder, sources=sources), [], time.monotonic() + given.seconds

    def work(number):
        if time.monotonic() < ends:
            outcomes.append(outcome := nemesis.run(number))
            print(outcome, flush=True)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        turns = iter(range(given.first, given.first + given.runs))
        waiting = {pool.submit(work, number) for number in itertools.islice(turns, given.jobs)}
        while waiting:
            ended, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                future.result()
            waiting |= {
                pool.submit(work, number) for number in itertools.islice(turns, len(ended)) if time.monotonic() < ends
            }
    nemesis.close()
    print(summary(outcomes, sources), flush=True)
    return int(any(outcome.violations for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
