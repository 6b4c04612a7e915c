"""What a process takes, from /proc."""

import os

from springtide.domain.core.resources import Usage
from springtide.telemetry.host import usage


def test_this_process_has_taken_something():
    mine = usage.of_process(os.getpid())
    assert mine.cpu_s > 0 and mine.memory > 1 << 20 and mine.peak >= mine.memory >> 1


def test_names_with_spaces_and_brackets_do_no_harm(tmp_path):
    (tmp_path / "7").mkdir()
    fields = ["S", *map(str, range(4, 14)), "250", "50", *map(str, range(20))]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    (tmp_path / "7" / "status").write_text(
        "Name:\ta) b\nVmHWM:\t  9 kB\nRssAnon:\t  3 kB\nRssShmem:\t 2 kB\nThreads:\t1\n"
    )
    assert usage.of_process(7, tmp_path) == Usage(cpu_s=300 / usage.TICKS_PER_S, memory=5 << 10, peak=9 << 10)


def test_a_process_that_is_gone_takes_nothing(tmp_path):
    assert usage.of_process(7, tmp_path) == Usage()
