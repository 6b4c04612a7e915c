"""Roles forked from a warm interpreter behave like other processes and end with it."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import springtide
from springtide.platforms.local import fork_server
from springtide.platforms.local.fork_server import ForkServerClient
from tests.waiting import until

MODULE = """
import os, random, signal, sys
print(__name__, sys.argv[1:], os.environ.get("COLOUR"), os.getpgrp(), random.random(), flush=True)
if sys.argv[1] == "wait":
    signal.pause()
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """One that knows the module `born`, ready."""
    (tmp_path / "born.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{pathlib.Path(springtide.__file__).parents[1]}")
    monkeypatch.setattr(fork_server, "IMPORTS", ("json",))
    made = ForkServerClient(besides=["COLOUR", "PYTEST_CURRENT_TEST"])
    made.begin(os.environ)
    until(lambda: made.suits(os.environ))
    yield made
    made.close()


def fork_role(interpreter, tmp_path, *arguments, **more):
    """A forked process and its log file."""
    log = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
    with open(log, "ab") as file:
        environment = {**os.environ, "COLOUR": "green"}
        where = {"process_group": os.getpgrp(), **more}
        return interpreter.start("born", arguments, environment, file.fileno(), **where), log


def test_forked_role_runs_its_module_with_its_own_variables_log_and_group(interpreter, tmp_path):
    process, log = fork_role(interpreter, tmp_path, "3", "x")
    assert process.wait() == 3 and process.wait() == 3
    assert log.read_text().startswith(f"__main__ ['3', 'x'] green {os.getpgrp()} 0.")


def test_two_forks_draw_different_random_numbers(interpreter, tmp_path):
    first, second = fork_role(interpreter, tmp_path, "0"), fork_role(interpreter, tmp_path, "0")
    assert first[0].wait() == second[0].wait() == 0
    assert first[1].read_text() != second[1].read_text()


def test_forked_role_can_be_signalled_and_reports_the_signal(interpreter, tmp_path):
    process, log = fork_role(interpreter, tmp_path, "wait")
    until(log.read_text)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)


def test_forks_of_a_killed_fork_server_end_and_it_forks_no_more(interpreter, tmp_path):
    process, log = fork_role(interpreter, tmp_path, "wait")
    until(log.read_text)
    os.kill(interpreter._process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert fork_role(interpreter, tmp_path, "0")[0] is None
    assert not interpreter.suits(os.environ)


def test_unresponsive_fork_server_is_not_asked_again_and_its_forks_continue(interpreter, tmp_path):
    process, log = fork_role(interpreter, tmp_path, "wait")
    until(log.read_text)
    interpreter._asking.settimeout(0.05)
    os.kill(interpreter._process.pid, signal.SIGSTOP)
    late, said = fork_role(interpreter, tmp_path, "0")
    assert late is None and not interpreter.suits(os.environ)
    os.kill(interpreter._process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM and said.read_text() == ""


def test_newer_build_is_forked_from_a_new_server_and_earlier_forks_continue(interpreter, tmp_path, monkeypatch):
    early, _ = fork_role(interpreter, tmp_path, "wait")
    build = fork_server.installed_build()
    monkeypatch.setattr(fork_server, "installed_build", lambda: (*build, 1))

    until(lambda: interpreter.suits(os.environ))
    late, _ = fork_role(interpreter, tmp_path, "3")
    assert late.wait() == 3
    parents = [pathlib.Path(f"/proc/{early.pid}/stat").read_text().rpartition(")")[2].split()[1]]
    assert parents == [str(interpreter._retired[0][1].pid)]
    early.send_signal(signal.SIGTERM)
    assert early.wait() == -signal.SIGTERM


def test_running_process_stays_with_its_build_when_a_link_leads_to_another(tmp_path):
    real = pathlib.Path(springtide.__file__).parent
    for version in ("old", "new"):
        (tmp_path / version).mkdir()
        for name in ("__init__.py", "lazy_names.py", "errors.py"):
            (tmp_path / version / "springtide").mkdir(exist_ok=True)
            shutil.copy(real / name, tmp_path / version / "springtide" / name)
    (tmp_path / "current").symlink_to("old")
    (tmp_path / "next").symlink_to("new")
    program = "import os, springtide; os.replace('next', 'current'); import springtide.errors as e; print(e.__file__)"
    environment = {**os.environ, "PYTHONPATH": "current"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert pathlib.Path(done.stdout.strip()) == tmp_path.resolve() / "old" / "springtide" / "errors.py"


def test_fork_that_cannot_be_placed_in_its_group_never_runs(interpreter, tmp_path):
    process, log = fork_role(interpreter, tmp_path, "0", folders=[str(tmp_path / "no-such-group")])
    assert process is None and log.read_text() == ""
    assert fork_role(interpreter, tmp_path, "0")[0].wait() == 0


def test_fork_server_is_used_only_with_the_same_import_settings(interpreter):
    assert interpreter.suits({**os.environ, "COLOUR": "red", "SPRINGTIDE_MEMBER": "worker-3"})
    assert not interpreter.suits({**os.environ, "OMP_NUM_THREADS": "7"})


def begun_importing(tmp_path, monkeypatch, module):
    """A client whose fork server imports this text."""
    (tmp_path / "imported.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{pathlib.Path(springtide.__file__).parents[1]}")
    monkeypatch.setattr(fork_server, "IMPORTS", ("imported",))
    made = ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
    made.begin(os.environ)
    return contextlib.closing(made)


def test_role_start_does_not_wait_for_a_fork_server_still_importing(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "ANSWER_S", 120.0)
    with begun_importing(tmp_path, monkeypatch, "import signal; signal.pause()") as made:
        began = time.monotonic()
        assert not made.suits(os.environ) and not made.suits(os.environ)
        assert time.monotonic() - began < 60


def test_job_waits_until_its_fork_server_has_imported(tmp_path, monkeypatch):
    with begun_importing(tmp_path, monkeypatch, "import time; time.sleep(0.2)") as made:
        assert not made.suits(os.environ)
        asyncio.run(made.imported())
        assert made.suits(os.environ)


def test_job_does_not_wait_for_a_fork_server_that_ends_or_hangs(tmp_path, monkeypatch):
    with begun_importing(tmp_path, monkeypatch, "raise SystemExit(1)") as made:
        asyncio.run(asyncio.wait_for(made.imported(), 60))
        assert not made.suits(os.environ)
    monkeypatch.setattr(fork_server, "IMPORT_S", 0.1)
    with begun_importing(tmp_path, monkeypatch, "import signal; signal.pause()") as made:
        asyncio.run(asyncio.wait_for(made.imported(), 60))
        assert not made.suits(os.environ)


def test_job_without_a_fork_server_does_not_wait():
    made = ForkServerClient()
    asyncio.run(asyncio.wait_for(made.imported(), 60))
    assert not made.suits(os.environ)
