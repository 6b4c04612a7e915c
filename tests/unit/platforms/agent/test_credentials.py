"""Certificates of a job: created in memory, checked by both sides, renewed in time."""

import datetime
import pathlib
import ssl

import pytest

from springtide import errors
from springtide.platforms.agent import credentials
from springtide.rpc.transport import tls

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return credentials.make("ads/ctr 7", at=NOW)


def folder(root: pathlib.Path, files: dict[str, bytes], role: str = "worker") -> str:
    credentials.lay_out(files, root)
    return str(root / role)


def test_certificate_names_its_job_and_role(files: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    assert tls.identity(folder(tmp_path, files, "server")) == ("ads/ctr 7", "server")


def test_role_sees_only_its_own_key_and_no_one_the_authoritys(files: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    own = pathlib.Path(folder(tmp_path, files))
    assert sorted(path.name for path in own.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in own.iterdir())
    assert sorted(name for name in files if name.endswith(".key")) == sorted(
        f"{role}.key" for role in credentials.ROLES
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(credentials.ROLES)


def test_renewed_files_are_used_without_a_restart(tmp_path: pathlib.Path) -> None:
    own = folder(tmp_path, credentials.make("first", at=NOW))
    assert tls.identity(own).job == "first"
    folder(tmp_path, credentials.make("second", at=NOW))
    assert tls.identity(own).job == "second"


def test_unusable_certificate_files_are_named_with_the_reason(files: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadInput, match=r"cannot be used: .*No such file"):
        tls.identity(str(tmp_path / "nothing"))
    expired = folder(tmp_path / "expired", credentials.make("old", at=NOW - 60 * DAY, life=30 * DAY))
    with pytest.raises(errors.BadInput, match=r"is not valid under ca\.crt: certificate has expired"):
        tls.identity(expired)
    mixed = pathlib.Path(folder(tmp_path / "mixed", files))
    (mixed / "tls.key").write_bytes(files["server.key"])
    with pytest.raises(errors.BadInput, match="key values mismatch"):
        tls.identity(str(mixed))
    strange = pathlib.Path(folder(tmp_path / "strange", files))
    (strange / "ca.crt").write_bytes(credentials.make("other", at=NOW)["ca.crt"])
    with pytest.raises(errors.BadInput, match="is not valid under"):
        tls.identity(str(strange))


def test_certificate_of_another_job_or_role_is_refused(files: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    own = folder(tmp_path, files)
    mine = {"subjectAltName": (("DNS", "somewhere"), ("URI", "springtide:ads%2Fctr%207/master"))}
    assert tls.check(mine, own, "master") == ("ads/ctr 7", "master")
    assert tls.check(mine, own) == ("ads/ctr 7", "master")
    with pytest.raises(tls.auth.Rejected, match="for a master, but the caller expected a server"):
        tls.check(mine, own, "server")
    with pytest.raises(tls.auth.Rejected, match="for the job 'b'"):
        tls.check({"subjectAltName": (("URI", "springtide:b/master"),)}, own)
    for nameless in ({}, None, {"subjectAltName": (("URI", "springtide:"), ("URI", "https://b/master"))}):
        with pytest.raises(tls.auth.Rejected, match="names no process"):
            tls.check(nameless, own)


def test_unknown_role_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(errors.UnknownName):
        credentials.of_role(files, "wroker")


def test_openssl_error_becomes_a_sentence() -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")
    error.reason = "WRONG_VERSION_NUMBER"
    assert "does not speak TLS" in tls.explain(error)
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    assert "unknown ca" in tls.explain(error)
