"""The story of a job is JSON lines; a full disk is said so."""

import json
import pathlib

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.telemetry import events, logs
from tests.full_disks import no_file_longer_than


def test_events_are_json_lines_in_order(tmp_path):
    story = events.EventLog(tmp_path / "events.jsonl")
    story.write("joined", role="worker-0")
    story.write("phase", phase="running", why="everyone is here")
    story.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["joined", "phase"]
    assert lines[0]["at"] <= lines[1]["at"]


def test_a_full_disk_is_named_with_what_to_do():
    story = events.EventLog(pathlib.Path("/dev/full"))
    story.write("joined", role="worker-0")
    with pytest.raises(errors.DiskFull, match="no room left to write /dev/full; free some space, or choose another"):
        story.close()


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(tmp_path):
    path = tmp_path / "events.jsonl"
    story = events.EventLog(path)
    story.write("joined", role="worker-0")
    with no_file_longer_than(path.stat().st_size + 20):  # less than a line
        for number in range(3):
            story.write("decision", what=f"decision {number}")
        assert story.trouble is not None
    story.write_rest()
    assert story.trouble is None
    story.write("phase", phase="running")
    story.close()
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    told = [json.loads(line) for line in whole]
    assert [one.get("what", one["event"]) for one in told] == [
        "joined",
        "decision 0",
        "decision 1",
        "decision 2",
        "phase",
    ]
    assert len(path.read_text().splitlines()) == 6, "what was written of the first line stands alone"


TOLD = [("joined", "worker-0"), ("phase", 'a "quoted" why'), ("decision", "x" * 50)]


def write(path, told):
    story = events.EventLog(path)
    for kind, what in told:
        story.write(kind, what=what)
    story.close()


def what_is_told(path):
    return [(event["event"], event["what"]) for event in events.read(path)]


def test_wherever_a_writer_is_killed_what_it_wrote_before_and_another_writes_after_is_read(tmp_path):
    write(whole := tmp_path / "whole.jsonl", TOLD)
    text = whole.read_bytes()
    ends = [at for at, byte in enumerate(text) if byte == ord("\n")]
    for cut in range(len(text)):
        (path := tmp_path / "events.jsonl").write_bytes(text[:cut])
        complete = sum(end < cut for end in ends)
        assert what_is_told(path) == TOLD[:complete]
        write(path, TOLD[:2])
        kept = complete + (cut in ends)  # all of a line but its end is a line
        assert what_is_told(path) == [*TOLD[:kept], *TOLD[:2]], text[:cut]


@pytest.mark.parametrize(
    "part", [b'{"at":1700000000.0,"event":"joi', b"\0" * 40, b'{"at":17}\n[]\n7\n"text"\n\xff\xfe']
)
def test_a_line_that_continues_a_torn_one_is_read_too(tmp_path, part):
    write(path := tmp_path / "events.jsonl", TOLD)
    path.write_bytes(part + path.read_bytes())
    assert what_is_told(path) == TOLD


def test_runs_of_one_name_get_folders_of_their_own(tmp_path):
    first, second = logs.make_run(tmp_path, "job"), logs.make_run(tmp_path, "job")
    assert (first.root.name, second.root.name) == ("job", "job-2")
    assert second.log_of(Role(RoleKind.WORKER, 1)) == tmp_path / "job-2" / "logs" / "worker-1.log"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInput, match=r"cannot write .*file/job"):
        logs.make_run(tmp_path / "file", "job")
