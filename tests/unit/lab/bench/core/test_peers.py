import sys

import pytest

from springtide_lab.bench.core import peers

ECHO = """
import line
def start(options):
    print("a library that talks")
    if options.get("broken"):
        raise RuntimeError("no such kernel")
    return lambda request: {{"figure": options["base"] + request.get("add", 0)}}
PACKAGES = ("pytest", "no-such-package")
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(ECHO.format())
    (tmp_path / "dies.py").write_text("import sys\nprint('out of luck', file=sys.stderr)\nsys.exit(3)\n")
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)


@pytest.mark.process
def test_peer_worker_answers_rounds_until_closed(echo):
    with peers.Worker("echo", options={"base": 5}) as worker:
        assert peers.PEER_VERSIONS["pytest"] == pytest.__version__
        assert worker.figure() == 5
        assert worker.figure(add=2) == 7
        worker.close()


@pytest.mark.process
def test_error_of_a_peer_is_reported_and_its_process_ends(echo):
    with pytest.raises(peers.PeerFailed, match="no such kernel"):
        peers.Worker("echo", options={"broken": True})


@pytest.mark.process
def test_dying_peer_reports_its_last_output(echo):
    with pytest.raises(peers.PeerFailed, match="code 3: out of luck"):
        peers.Worker("dies", options={})


def test_existing_peer_environment_is_reused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    folder = tmp_path / peers.FOLDER
    folder.mkdir()
    (folder / "installed.txt").write_text("\n".join((peers.versions.TORCH, *peers.versions.PEERS)))
    assert peers.environment() == folder / "bin" / "python"
