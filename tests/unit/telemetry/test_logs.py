"""The final error in a role's log."""

from springtide.telemetry import logs

TRACE = """2026-11-17 03:00:01,000 INFO    springtide.x: listening at h:1
Traceback (most recent call last):
  File "x.py", line 3, in <module>
    raise ValueError("first line\\nsecond line")
ValueError: first line
second line
"""


def test_last_error_is_the_line_below_a_traceback_or_a_logged_error():
    assert logs.error_in(TRACE) == "ValueError: first line"
    logged = "2026-11-17 03:00:02,000 ERROR   springtide.server.__main__: the master is gone: try again\n"
    assert logs.error_in(TRACE + logged) == "the master is gone: try again"
    assert logs.error_in(logged + TRACE) == "ValueError: first line"
    chained = (
        TRACE
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACE.replace("ValueError", "OSError")
    )
    assert logs.error_in(chained) == "OSError: first line"
    assert logs.error_in("2026-11-17 03:00:01,000 WARNING springtide.x: slow\nplain words\n") == ""
    assert logs.error_in(TRACE[TRACE.index("  File") :]) == "ValueError: first line", "of a log that was cut"
    assert len(logs.error_in("Traceback (most recent call last):\n" + "E" * 9000)) == logs.LONGEST


def test_errors_of_an_earlier_incarnation_are_ignored(tmp_path):
    path = tmp_path / "server-0.log"
    path.write_text(TRACE)
    assert logs.last_error(path) == "ValueError: first line"
    assert logs.last_error(path, since=path.stat().st_size) == ""
    assert logs.last_error(tmp_path / "none") == ""
