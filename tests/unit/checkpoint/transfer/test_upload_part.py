"""A server's part of a copy: what is missing at the URL is sent, what it does not have is said."""

import json
import subprocess
import sys

import pytest

from springtide.checkpoint.transfer import upload_part
from springtide.rpc.messages import messages
from springtide.server import upload

FILES = (
    ("server-0/server-0.0-000001.run1.seg", 4),
    ("server-0/server-0.0-000002.run1.seg", 4),
    ("server-0/gone.seg", 4),
)


def fill(folder):
    (folder / "server-0").mkdir(parents=True)
    (folder / FILES[0][0]).write_bytes(b"0001")
    (folder / FILES[1][0]).write_bytes(b"0002")
    return folder


def test_only_what_it_has_not_sent_before_is_sent(tmp_path):
    folder, url = fill(tmp_path / "disk"), f"file://{tmp_path}/copy"
    assert upload_part.send(folder, url, FILES[:1]) == upload_part.PartUploaded(1, 4)
    assert upload_part.send(folder, url, FILES) == upload_part.PartUploaded(1, 4, (FILES[2][0],))
    assert upload_part.send(folder, url, FILES) == upload_part.PartUploaded(0, 0, (FILES[2][0],))


@pytest.mark.parametrize("there", [b"0009", b"000", b""])
def test_another_file_of_the_same_name_is_written_over_whatever_its_size(tmp_path, there):
    folder, url = fill(tmp_path / "disk"), f"file://{tmp_path}/copy"
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "server-0.0-000001.run1.seg"
    copy.write_bytes(there)
    assert upload_part.send(folder, url, FILES[:1]) == upload_part.PartUploaded(1, 4)
    assert copy.read_bytes() == b"0001"
    copy.unlink()
    copy.write_bytes(b"0009")
    assert upload_part.send(folder, url, FILES[:1]) == upload_part.PartUploaded(1, 4)
    assert copy.read_bytes() == b"0001"


def test_a_server_has_it_done_by_a_process_and_tells_what_became_of_it(tmp_path):
    folder = fill(tmp_path / "disk")
    said = upload.send(folder, messages.CopyOrder(7, f"file://{tmp_path}/copy", FILES))
    assert said == messages.CopyReport(7, 2, 8, (FILES[2][0],))
    command = [
        sys.executable,
        "-m",
        "springtide.checkpoint.transfer.upload_part",
        str(folder),
        "nonsense://there",
        "[]",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert "nonsense" in json.loads(process.stdout.read())["error"] and process.wait() == 1
