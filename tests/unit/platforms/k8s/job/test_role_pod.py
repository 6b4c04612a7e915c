import io
import subprocess
import sys
import tarfile

import pytest

from springtide import errors
from springtide.platforms.k8s.job import role_pod


def archive(path, **files):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            found = tarfile.TarInfo(name.replace("__", "/").replace("_py", ".py"))
            found.size = len(text)
            tar.addfile(found, io.BytesIO(text.encode()))
    return path


def test_role_runs_in_its_code_folder(tmp_path):
    archive(tmp_path / "code.tgz", own_py="print('own', __name__)", pack____init___py="", data_txt="5")
    home = tmp_path / "home"
    role_pod.unpack(tmp_path / "code.tgz", home)
    code = (
        "import pathlib, sys; from springtide.platforms.k8s.job import role_pod; "
        f"role_pod.run('own', ['--lr', '1'], pathlib.Path({str(home)!r})); print(sys.argv[1:], pathlib.Path.cwd())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["own", "__main__", "['--lr',", "'1']", str(home)]


def test_archive_entry_outside_its_folder_is_refused(tmp_path):
    with tarfile.open(tmp_path / "code.tgz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../evil"), io.BytesIO(b""))
    with pytest.raises(errors.BadInput, match="cannot be unpacked"):
        role_pod.unpack(tmp_path / "code.tgz", tmp_path / "home")


def test_invalid_code_archive_is_reported(tmp_path):
    (tmp_path / "code.tgz").write_text("no")
    with pytest.raises(errors.BadInput, match="submit it again"):
        role_pod.unpack(tmp_path / "code.tgz", tmp_path / "home")


@pytest.mark.parametrize(("member", "shown"), [("worker-3", "worker-3"), ("data-worker-0", "data-worker-0")])
def test_role_is_known_from_its_setting(member, shown):
    assert str(role_pod.role_of(member)) == shown


def test_invalid_member_name_is_refused():
    with pytest.raises(errors.BadInput, match="such as server-0"):
        role_pod.role_of("nobody")
