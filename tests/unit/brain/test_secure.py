"""A brain with TLS: masters with its certificates are served, others refused with a reason."""

import asyncio
import pathlib

import pytest

from springtide import errors
from springtide.brain.service import messages, serve
from springtide.brain.service.advisers import RemoteAdviser
from springtide.rpc.transport import addresses, tls
from tests.unit.brain.embedded_brain import brain, lying_brain, master
from tests.unit.planning import views


def ask_brain(folder: pathlib.Path, asking: str, *, serve: str | None = None, connect_s: float = 20.0):
    """Ask the brain as a master with these certificates; `connect_s`: how long it tries to connect."""

    async def ask():
        async with (
            brain(folder, tls=str(folder / "tls") if serve is None else serve) as service,
            master(folder, service, certificates=asking, connect_s=connect_s) as remote,
        ):
            await remote.advise(views.running(), epoch=1, now=1.0)
            return await remote.ask(messages.Inspect())

    return asyncio.run(ask())


def make_client_certificates(folder: pathlib.Path) -> str:
    """Client certificates that a brain serving in this folder would create."""
    return serve.certificate_folders(folder / "tls")[1]


def test_master_with_the_brains_certificates_is_answered(tmp_path):
    status = ask_brain(tmp_path, make_client_certificates(tmp_path))
    assert [one.name for one in status.jobs] and status.consults == 1
    where = addresses.read_master(serve.where_file(tmp_path))
    assert where.tls == str(tmp_path / "tls" / "master")
    assert tls.identity(where.tls) == tls.Identity("brain", "master")


def test_certificates_are_created_once_and_kept_by_the_next_brain(tmp_path):
    asking = make_client_certificates(tmp_path)
    before = (pathlib.Path(asking) / "ca.crt").read_bytes()
    ask_brain(tmp_path, asking)
    assert (pathlib.Path(asking) / "ca.crt").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["tls"]
    assert pathlib.Path(asking).stat().st_mode & 0o077 == 0


def test_plaintext_master_is_told_the_missing_setting(tmp_path):
    with pytest.raises(errors.BrainUnreachable, match="a peer with TLS needs SPRINGTIDE_BRAIN_TLS on this side"):
        ask_brain(tmp_path, "", connect_s=0.5)


def test_master_of_another_authority_is_refused(tmp_path):
    with pytest.raises(errors.BrainUnreachable, match="certificate"):
        ask_brain(tmp_path, make_client_certificates(tmp_path / "elsewhere"))


def test_tls_master_sends_nothing_to_a_plaintext_brain(tmp_path):
    with pytest.raises(errors.BrainUnreachable):
        ask_brain(tmp_path, make_client_certificates(tmp_path), serve="", connect_s=0.5)


def test_master_certificates_cannot_serve_as_a_brain(tmp_path):
    """The holder of client certificates cannot listen in the brain's place."""
    asking = make_client_certificates(tmp_path)

    async def ask():
        async with lying_brain(lambda call: None, certificates=asking) as address:
            remote = RemoteAdviser(address, bytes(range(32)), certificates=asking, connect_s=20.0)
            try:
                await remote.advise(views.running(), epoch=1, now=1.0)
            finally:
                await remote.close()

    with pytest.raises(errors.BrainUnreachable, match="is for a master, but the caller expected a brain"):
        asyncio.run(ask())


def test_unusable_certificates_are_refused_at_once(tmp_path):
    (tmp_path / "tls" / "brain").mkdir(parents=True)
    with pytest.raises(errors.BadInput, match="cannot be used"):
        ask_brain(tmp_path, "")
    with pytest.raises(errors.BadInput, match="cannot be used"):
        RemoteAdviser("127.0.0.1:1", b"x" * 32, certificates=str(tmp_path))
    make_client_certificates(tmp_path / "other")
    (tmp_path / "tls" / "brain").rmdir()
    (tmp_path / "other" / "tls" / "master").rename(tmp_path / "tls" / "brain")
    with pytest.raises(errors.BadInput, match="is for a master; expected one for a brain"):
        ask_brain(tmp_path, "")


def test_certificate_folder_with_other_files_is_left_unchanged(tmp_path):
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "notes").write_text("mine")
    with pytest.raises(errors.BadInput, match="cannot make certificates"):
        ask_brain(tmp_path, "")
    assert [each.name for each in tmp_path.iterdir() if ".part" in each.name] == []
