"""The event log is JSON lines; a full disk is reported."""

import json
import pathlib

import msgspec
import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.telemetry import events, logs
from springtide.telemetry.events import Series, read_points
from tests.full_disks import no_file_longer_than


def test_events_are_json_lines_in_order(tmp_path):
    story = events.EventLog(tmp_path / "events.jsonl")
    story.write("joined", role="worker-0")
    story.write("phase", phase="running", why="everyone is here")
    story.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["joined", "phase"]
    assert lines[0]["at"] <= lines[1]["at"]


def test_full_disk_is_named_with_advice():
    story = events.EventLog(pathlib.Path("/dev/full"))
    story.write("joined", role="worker-0")
    with pytest.raises(errors.DiskFull, match="no room left to write /dev/full; free some space, or choose another"):
        story.close()


def test_events_lost_to_a_full_disk_are_written_once_there_is_room(tmp_path):
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


def logged_events(path):
    return [(event["event"], event["what"]) for event in events.read(path)]


def test_events_before_and_after_a_killed_writer_are_read(tmp_path):
    write(whole := tmp_path / "whole.jsonl", TOLD)
    text = whole.read_bytes()
    ends = [at for at, byte in enumerate(text) if byte == ord("\n")]
    for cut in range(len(text)):
        (path := tmp_path / "events.jsonl").write_bytes(text[:cut])
        complete = sum(end < cut for end in ends)
        assert logged_events(path) == TOLD[:complete]
        write(path, TOLD[:2])
        kept = complete + (cut in ends)  # all of a line but its end is a line
        assert logged_events(path) == [*TOLD[:kept], *TOLD[:2]], text[:cut]


@pytest.mark.parametrize(
    "part", [b'{"at":1700000000.0,"event":"joi', b"\0" * 40, b'{"at":17}\n[]\n7\n"text"\n\xff\xfe']
)
def test_line_appended_to_a_torn_one_is_read(tmp_path, part):
    write(path := tmp_path / "events.jsonl", TOLD)
    path.write_bytes(part + path.read_bytes())
    assert logged_events(path) == TOLD


def test_runs_of_one_name_get_separate_folders(tmp_path):
    first, second = logs.make_run(tmp_path, "job"), logs.make_run(tmp_path, "job")
    assert (first.root.name, second.root.name) == ("job", "job-2")
    assert second.log_of(Role(RoleKind.WORKER, 1)) == tmp_path / "job-2" / "logs" / "worker-1.log"


def test_unwritable_runs_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInput, match=r"cannot write .*file/job"):
        logs.make_run(tmp_path / "file", "job")


class Point(msgspec.Struct, frozen=True):
    at: float
    lag_s: float = 0.0


def test_points_are_available_to_the_next_master(tmp_path):
    first = Series(tmp_path / "online.jsonl", Point, most=10)
    first.add(Point(1.0), Point(2.0, 5.0))
    again = Series(tmp_path / "online.jsonl", Point, most=10)
    again.add(Point(3.0))
    assert again.points == read_points(again.path, Point) == [Point(1.0), Point(2.0, 5.0), Point(3.0)]


def test_series_file_holds_at_most_twice_the_kept_points(tmp_path):
    series = Series(tmp_path / "p", Point, most=5)
    for at in range(100):
        series.add(Point(float(at)))
        assert len(series.path.read_bytes().splitlines()) <= 10
    assert [point.at for point in series.points] == [95, 96, 97, 98, 99]
    assert Series(series.path, Point, most=5).points == series.points


def test_truncated_line_is_skipped(tmp_path):
    path = tmp_path / "p"
    Series(path, Point, most=5).add(Point(1.0), Point(2.0))
    path.write_bytes(path.read_bytes()[:-4])
    assert Series(path, Point, most=5).points == [Point(1.0)]
    Series(path, Point, most=5).add(Point(3.0))
    assert read_points(path, Point) == [Point(1.0), Point(3.0)]


def test_invalid_hand_written_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "given.jsonl"
    path.write_text('{"at": 1}\n{"when": 2}\n')
    with pytest.raises(errors.BadInput, match=r"given.jsonl, line 2: .*`at`"):
        read_points(path, Point, strict=True)
    with pytest.raises(errors.BadInput, match="cannot be read"):
        read_points(tmp_path, Point)


def test_points_lost_to_a_full_disk_are_written_with_the_next(tmp_path, caplog):
    series = Series(tmp_path / "p", Point, most=5)
    series.add(Point(1))
    with no_file_longer_than(0):
        series.add(Point(2))
        series.add(Point(3))
    assert len(caplog.messages) == 1 and "cannot write" in caplog.text
    series.add(Point(4))
    assert read_points(series.path, Point) == [Point(1), Point(2), Point(3), Point(4)]
