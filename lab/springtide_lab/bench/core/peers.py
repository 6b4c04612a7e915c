"""Run peer systems in their own processes and virtual environment; talk to them in lines of JSON.

In: a benchmark script that speaks the protocol below, such as `store/bags`. Out: `Worker.figure`, which measures one
round. The environment `.venv-peers` is created once, beside the environment of this process.

    -> {"do": "start", ...options}    <- {"ready": true, "versions": {...}}  or  {"error": "..."}
    -> {"do": "round", ...}           <- {"figure": 123.4, ...}
    -> {"do": "stop"}
"""

import collections
import contextlib
import json
import pathlib
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Self

from springtide import errors
from springtide_lab.bench.core import harness, versions

FOLDER = ".venv-peers"
SCRIPTS = pathlib.Path(__file__).parent.parent
PROTOCOL = pathlib.Path(__file__).parent / "worker_side" / "line.py"
"""Program that runs a peer's script. The folder of the script has no other module, so that peers can import neither
Springtide nor lab.
"""
PEER_VERSIONS: dict[str, str] = {}
"""Package versions that workers have reported so far; part of a benchmark's result."""


class PeerFailed(errors.TemporaryError):
    """A peer could not be set up or stopped answering; the benchmark continues without it and reports this."""


def environment() -> pathlib.Path:
    """Return the Python of the peers' environment (torch, FBGEMM, TorchRec); raise PeerFailed if there is none."""
    return environment_of("peers", FOLDER, versions.PEERS, first=(versions.TORCH,))


def environment_of(what: str, folder_name: str, packages: Sequence[str], first: Sequence[str] = ()) -> pathlib.Path:
    """Return the Python of an environment beside ours; create it if needed. Only packages in `first` get their
    dependencies."""
    folder = pathlib.Path(sys.prefix).parent / folder_name
    python = folder / "bin" / "python"
    record = folder / "installed.txt"
    wanted = "\n".join((*first, *packages))
    if record.exists() and record.read_text() == wanted:
        return python
    harness.say(f"making {folder} for {what} (once, some minutes)")
    venv.EnvBuilder(with_pip=True).create(folder)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for chosen in ([*first], ["--no-deps", *packages]):
        if not chosen:
            continue
        harness.say(f"installing {chosen[0] if first and chosen == [*first] else what}")
        done = subprocess.run([*install, *chosen], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise PeerFailed(f"pip could not install {what} into {folder}: {' '.join(last)}")
    record.write_text(wanted)
    return python


@contextlib.contextmanager
def optional(what: str, notes: list[str]) -> Iterator[None]:
    """Continue without a peer that failed, and add the reason to the notes."""
    try:
        yield
    except PeerFailed as error:
        notes.append(f"{what} was not measured: {error}")
        harness.say(notes[-1])


class Worker:
    """A process that measures on request. Use as a context."""

    def __init__(
        self,
        script: str,
        *,
        python: pathlib.Path | None = None,
        options: Mapping[str, Any],
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        admit: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """Start the process. `inside` is put before the command, e.g. to enter a network namespace.

        `admit` is called with the id of the process.
        """
        self.name = script
        command = [*inside, str(python or sys.executable), str(PROTOCOL), str(SCRIPTS / f"{script}.py")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=None if environment is None else dict(environment),
        )
        admit(self._process.pid)
        self._complaints: collections.deque[str] = collections.deque(maxlen=20)
        self._reader = threading.Thread(target=self._listen, name=f"stderr of {script}", daemon=True)
        self._reader.start()
        try:
            PEER_VERSIONS.update(self.ask("start", **options)["versions"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        try:
            _pipe(self._process.stdin).write(json.dumps({"do": do, **more}) + "\n")
            line = _pipe(self._process.stdout).readline()
            while line and not line.startswith("{"):
                line = _pipe(self._process.stdout).readline()  # skip lines that a library printed
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._reader.join()
            said = " | ".join(self._complaints) or "no word"
            raise PeerFailed(f"{self.name} ended with code {self._process.returncode}: {said[-400:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer

    def figure(self, **more: Any) -> float:
        return float(self.ask("round", **more)["figure"])

    def close(self) -> None:
        """Ask the process to stop, and kill it after 10 seconds. May be called twice."""
        if self._process.poll() is None:
            try:
                _pipe(self._process.stdin).write('{"do": "stop"}\n')
                self._process.wait(timeout=10)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            _pipe(pipe).close()

    def _listen(self) -> None:
        for line in _pipe(self._process.stderr):
            self._complaints.append(line.strip())


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
