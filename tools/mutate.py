"""Mutation testing: change one operator, constant or statement at a time, and see whether a unit test fails.

    python tools/mutate.py springtide/job [--every 3] [--jobs 2]

All tests are imported once. A forked child replaces the code of one function and runs only the tests that reach the
changed line, the quickest first. docs/design/mutation.md explains the operators and lists survivors with reasons.
"""

import argparse
import contextlib
import functools
import gc
import os
import pathlib
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from mutants import ROOT, Mutant, mutants

PAGE = ROOT / "docs/design/mutation.md"
REQUIRED = 0.9  # killed, of all mutants
CPU_SLACK_S, WALL_S, MEMORY = 5, 300, 4 << 30  # limits of a mutant, which may run for ever or allocate without end
IDLE_S = 15.0  # a mutant that neither runs nor waits for a processor this long waits for something that never comes
LOOK_S = 0.05  # between two looks at the running mutants
TEST_CPU_S = 2.5  # of one test, with tracing; slower tests are left out
TESTS_CPU_S = 5.0  # tests of one mutant, the quickest first: a survivor costs no more than this
ARGUMENTS = ["-q", "-s", "--timeout=0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
EXAMPLES = 15


def tests_of(files: list[pathlib.Path]) -> list[str]:
    """Tests in the mirrored folders of `files`; also tests of the top package and properties that import a file."""
    texts = {test: test.read_text() for test in sorted((ROOT / "tests").rglob("*.py"))}
    chosen: set[pathlib.Path] = set()
    for file in files:
        package, _, module = ".".join(file.relative_to(ROOT).with_suffix("").parts).rpartition(".")
        uses = re.compile(rf"{package}\.{module}\b|from {re.escape(package)} import [^\n]*\b{module}\b")
        folder = file.parent.relative_to(ROOT / "springtide")
        mirror = ROOT / "tests/unit" / folder
        near = (ROOT.joinpath("tests/unit", *folder.parts[:1]), ROOT / "tests/property")
        users = {test for test, text in texts.items() if uses.search(text) and not {*near}.isdisjoint(test.parents)}
        chosen |= users | {test for test in texts if mirror == test.parent}
    return [str(test.relative_to(ROOT)) for test in sorted(chosen) if test.name.startswith("test_")]


class Runner:
    """A pytest plugin: collects tests as always, then runs mutants in their place."""

    def __init__(self, chosen: list[Mutant], jobs: int) -> None:
        self.mutants, self.jobs = chosen, jobs
        self.survivors: list[Mutant] = []
        self.outcomes: Counter[str] = Counter()

    def pytest_sessionstart(self) -> None:
        """Property tests have few examples, and do not look for smaller ones, whatever their own settings say."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        init = hypothesis.settings.__init__

        def few(settings: hypothesis.settings, *args: Any, **options: Any) -> None:
            init(settings, *args, **options | {"max_examples": min(options.get("max_examples", EXAMPLES), EXAMPLES)})

        hypothesis.settings.register_profile(
            "mutate", deadline=None, database=None, phases=phases, max_examples=EXAMPLES
        )
        hypothesis.settings.load_profile("mutate")
        hypothesis.settings.__init__ = few  # type: ignore[method-assign]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        print(f"{len(self.mutants)} mutants, {len(session.items)} tests", flush=True)
        reach, cost = self.measure(session.items)
        gc.unfreeze()
        functions = defaultdict(list)
        for function in (each for each in gc.get_objects() if type(each) is types.FunctionType):
            code = function.__code__
            functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(function)
        gc.freeze()
        running: dict[int, Attempt] = {}
        for mutant in self.mutants:
            tests = sorted({test for n in mutant.lines for test in reach[str(mutant.path), n]}, key=cost.__getitem__)
            tests = [test for n, test in enumerate(tests) if sum(cost[t] for t in tests[:n]) < TESTS_CPU_S]
            targets = functions[str(mutant.path), *mutant.function]
            if not tests or not targets:
                self.note(mutant, "no test reaches it", survived=True)
                continue
            if len(running) >= self.jobs:
                self.reap(running)
            limit = CPU_SLACK_S + int(3 * sum(cost[test] for test in tests))
            items = [session.items[test] for test in tests]
            pid = fork(functools.partial(attempt, mutant, targets, items, limit))
            running[pid] = Attempt(pid, mutant)
        while running:
            self.reap(running)
        return True

    def measure(self, items: list[pytest.Item]) -> tuple[defaultdict[tuple[str, int], set[int]], dict[int, float]]:
        """Find out which tests reach each line, and the CPU seconds of each test."""
        paths = {str(mutant.path) for mutant in self.mutants}
        reach: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        seen: set[tuple[str, int]] = set()
        cost: dict[int, float] = {}

        def trace(frame: types.FrameType, _event: str, _arg: object) -> object:
            name = frame.f_code.co_filename
            if name not in paths:
                return None
            seen.add((name, frame.f_lineno))
            return trace

        def too_slow(_signal: int, _frame: object) -> None:
            raise TimeoutError

        def run() -> int:
            signal.signal(signal.SIGVTALRM, too_slow)
            for at, item in enumerate(items):
                seen.clear()
                began = cpu_s()
                signal.setitimer(signal.ITIMER_VIRTUAL, TEST_CPU_S)
                threading.settrace(trace)  # of threads that the test starts
                sys.settrace(trace)
                passed = passes([item])
                sys.settrace(None)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                if passed:
                    cost[at] = cpu_s() - began
                    for line in seen:
                        reach[line].add(at)
            pickle.dump((reach, cost), file)
            file.flush()
            return 0

        with tempfile.TemporaryFile() as file:
            os.waitpid(fork(run), 0)
            file.seek(0)
            reach, cost = pickle.load(file)
        for at in set(range(len(items))) - set(cost):
            print(f"left out, because it fails, skips or is slow without a mutant: {items[at].nodeid}", flush=True)
        return reach, cost

    def reap(self, running: dict[int, "Attempt"]) -> None:
        """Wait until a mutant ends, and end mutants that never would."""
        while not (ended := os.waitpid(-1, os.WNOHANG))[0]:
            for attempted in running.values():
                attempted.look()
            time.sleep(LOOK_S)
        pid, status = ended
        code, attempted = os.waitstatus_to_exitcode(status), running.pop(pid)
        outcomes = {0: "survived", 1: "failed a test", 2: "cannot be applied"}
        outcome = attempted.ended or outcomes.get(code, "ran too long or crashed")
        self.note(attempted.mutant, outcome, survived=code == 0)

    def note(self, mutant: Mutant, outcome: str, *, survived: bool) -> None:
        self.outcomes[outcome] += 1
        if survived:
            self.survivors.append(mutant)
            print(f"{outcome}: line {mutant.lines.start}, {mutant.key}", flush=True)

    def report(self) -> int:
        """Print the figures; return 1 if too many mutants survived."""
        page = PAGE.read_text()
        new = [mutant for mutant in self.survivors if mutant.key not in page]
        tried = len(self.mutants) - self.outcomes["cannot be applied"]
        killed = tried - len(self.survivors)
        print(f"\n{tried} mutants, {killed} killed ({killed / max(tried, 1):.1%}): {dict(self.outcomes)}")
        print(f"{len(self.survivors)} survived, {len(new)} of them without a reason in {PAGE.relative_to(ROOT)}")
        return int(killed < REQUIRED * tried)


class Attempt:
    """A child that runs the tests of one mutant."""

    def __init__(self, pid: int, mutant: Mutant) -> None:
        self.pid, self.mutant = pid, mutant
        self.ended = ""
        """Why the child was ended; empty if it was not."""
        self._began = self._looked = time.monotonic()
        self._active = 0.0

    def look(self) -> None:
        """End the child if it hangs, or takes too much memory. On a busy machine, time in the run queue counts."""
        now, root = time.monotonic(), pathlib.Path(f"/proc/{self.pid}")
        if int((root / "statm").read_text().split()[1]) * resource.getpagesize() > MEMORY:
            self._end("took too much memory")
        elif now - self._looked > IDLE_S and not self.ended:
            with contextlib.suppress(OSError):  # a thread has just ended
                times = [(task / "schedstat").read_text().split() for task in (root / "task").iterdir()]
                waits = any((task / "children").read_text() for task in (root / "task").iterdir())
                before, self._active = self._active, sum(int(ran) + int(queued) for ran, queued, _ in times) / 1e9
                self._looked = now
                if now - self._began > WALL_S or (abs(self._active - before) < 0.5 and not waits):
                    self._end("hung")

    def _end(self, why: str) -> None:
        self.ended = why
        os.kill(self.pid, signal.SIGKILL)


def attempt(mutant: Mutant, targets: list[types.FunctionType], items: list[pytest.Item], cpu: int) -> int:
    """In a child: replace the function's code, run the tests, and return the exit code for their outcome."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    code = mutant.compile()
    if code is None or code.co_freevars != targets[0].__code__.co_freevars:
        return 2
    for target in targets:
        target.__code__ = code
    return 0 if passes(items) else 1


def passes(items: list[pytest.Item]) -> bool:
    """Run tests up to the first that fails. Return True if none does."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        if any(not report.passed for report in runtestprotocol(item, log=False, nextitem=following)):
            return False
    return True


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def fork(child: Callable[[], int]) -> int:
    """Call a function in a forked child without output, and return the child's process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = child()
    finally:
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=pathlib.Path, help="files and folders below springtide/")
    parser.add_argument("--every", type=int, default=1, help="run one mutant of so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--tests", nargs="*", default=[], help="tests that drive these files through other modules")
    parser.add_argument("--again", type=pathlib.Path, help="run only the survivors in this output of an earlier run")
    options = parser.parse_args()
    paths = [path.resolve() for path in options.paths]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    every = [mutant for file in files for mutant in mutants(file)]
    if options.again:
        survivors = options.again.read_text()
        every = [mutant for mutant in every if f"{mutant.key}\n" in survivors]
    if not every:
        print("no function changed: nothing to mutate")
        return 0
    chosen = sorted(random.Random(options.seed).sample(range(len(every)), -(-len(every) // options.every)))
    runner = Runner([every[at] for at in chosen], options.jobs)
    os.chdir(ROOT)
    os.environ.setdefault("SPRINGTIDE_TEST_SEED", "1")
    arguments = [*ARGUMENTS, "-m", "not process and not soak and not gpu", *tests_of(files), *options.tests]
    return int(pytest.main(arguments, plugins=[runner])) or runner.report()


if __name__ == "__main__":
    sys.exit(main())
