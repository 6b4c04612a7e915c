"""The story of a job is JSON lines; a full disk is said so."""

import json
import pathlib

import pytest

from springtide import errors
from springtide.domain.cluster import Role, RoleKind
from springtide.telemetry import events, logs


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
    with pytest.raises(errors.DiskFull, match="no room left to write /dev/full; free some space, or choose another"):
        story.write("joined", role="worker-0")
    with pytest.raises(errors.DiskFull):
        story.close()


def test_runs_of_one_name_get_folders_of_their_own(tmp_path):
    first, second = logs.make_run(tmp_path, "job"), logs.make_run(tmp_path, "job")
    assert (first.root.name, second.root.name) == ("job", "job-2")
    assert second.log_of(Role(RoleKind.WORKER, 1)) == tmp_path / "job-2" / "logs" / "worker-1.log"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInput, match=r"cannot write .*file/job"):
        logs.make_run(tmp_path / "file", "job")
