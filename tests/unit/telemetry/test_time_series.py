"""Points of a job over time, kept in a file that does not grow for ever."""

import msgspec
import pytest

from springtide import errors
from springtide.telemetry.time_series import Series, read
from tests.full_disks import no_file_longer_than


class Point(msgspec.Struct, frozen=True):
    at: float
    lag_s: float = 0.0


def test_points_are_there_again_for_the_next_master(tmp_path):
    first = Series(tmp_path / "online.jsonl", Point, most=10)
    first.add(Point(1.0), Point(2.0, 5.0))
    again = Series(tmp_path / "online.jsonl", Point, most=10)
    again.add(Point(3.0))
    assert again.points == read(again.path, Point) == [Point(1.0), Point(2.0, 5.0), Point(3.0)]


def test_the_file_holds_at_most_twice_what_is_kept(tmp_path):
    series = Series(tmp_path / "p", Point, most=5)
    for at in range(100):
        series.add(Point(float(at)))
        assert len(series.path.read_bytes().splitlines()) <= 10
    assert [point.at for point in series.points] == [95, 96, 97, 98, 99]
    assert Series(series.path, Point, most=5).points == series.points


def test_a_line_that_a_crash_has_cut_off_is_left_out(tmp_path):
    path = tmp_path / "p"
    Series(path, Point, most=5).add(Point(1.0), Point(2.0))
    path.write_bytes(path.read_bytes()[:-4])
    assert Series(path, Point, most=5).points == [Point(1.0)]
    Series(path, Point, most=5).add(Point(3.0))
    assert read(path, Point) == [Point(1.0), Point(3.0)]


def test_a_file_by_hand_is_refused_with_its_line(tmp_path):
    path = tmp_path / "given.jsonl"
    path.write_text('{"at": 1}\n{"when": 2}\n')
    with pytest.raises(errors.BadInput, match=r"given.jsonl, line 2: .*`at`"):
        read(path, Point, strict=True)
    with pytest.raises(errors.BadInput, match="cannot be read"):
        read(tmp_path, Point)


def test_what_a_full_disk_did_not_take_is_written_with_the_next_points(tmp_path, caplog):
    series = Series(tmp_path / "p", Point, most=5)
    series.add(Point(1))
    with no_file_longer_than(0):
        series.add(Point(2))
        series.add(Point(3))
    assert len(caplog.messages) == 1 and "cannot write" in caplog.text
    series.add(Point(4))
    assert read(series.path, Point) == [Point(1), Point(2), Point(3), Point(4)]
