"""Secret and certificate files of an agent are complete or absent, so that the next agent can use them."""

import pytest

from springtide.platforms.agent import agent, credentials
from springtide.rpc.transport import tls
from springtide.telemetry import logs


@pytest.fixture
def files(tmp_path):
    return logs.make_run(tmp_path, "train")


def test_next_agent_keeps_the_secret_readable_only_by_its_owner(files):
    agent.write_secret(files, keep=True)
    drawn = files.secret.read_text()
    agent.write_secret(files, keep=True)
    assert files.secret.read_text() == drawn and len(bytes.fromhex(drawn)) == 32
    assert files.secret.stat().st_mode & 0o077 == 0


def test_agent_killed_while_writing_leaves_no_partial_file(files, monkeypatch):
    class Dies(BaseException):
        """Stands for SIGKILL: no cleanup runs."""

    def dies(*_):
        raise Dies

    with monkeypatch.context() as patched:
        patched.setattr(agent.secrets, "token_hex", dies)
        with pytest.raises(Dies):
            agent.write_secret(files, keep=True)
    with monkeypatch.context() as patched:
        of_role = credentials.of_role
        patched.setattr(credentials, "of_role", lambda made, role: dies() if role == "server" else of_role(made, role))
        with pytest.raises(Dies):
            agent.write_certificates("train", files)
    assert not files.secret.exists() and not files.tls.exists()
    agent.write_secret(files, keep=True)
    agent.write_certificates("train", files)
    assert files.secret.read_text()
    assert [tls.identity(files.certificates(role)).role for role in credentials.ROLES] == list(credentials.ROLES)
