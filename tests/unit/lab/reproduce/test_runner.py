"""Parallel runs: in order, in other processes, and none left over."""

import os
import signal
import subprocess
import sys

from springtide_lab.reproduce import runner
from tests.process.running import alive
from tests.waiting import until

PARENT = """
import os, signal, sys
from springtide_lab.reproduce import runner

def forever(number):
    os.write(1, b"%d\\n" % os.getpid())  # one write: with PYTHONUNBUFFERED a print is two, and two of them mix
    signal.pause()

runner.in_parallel(forever, [0, 1], processes=2)
"""


def pid_and_square(number):
    return os.getpid(), number * number


def test_parallel_results_keep_input_order():
    found = runner.in_parallel(pid_and_square, range(7), processes=2)
    assert [square for _, square in found] == [0, 1, 4, 9, 16, 25, 36]
    assert os.getpid() not in {pid for pid, _ in found}


def test_single_item_runs_in_this_process():
    assert runner.in_parallel(pid_and_square, [3]) == [(os.getpid(), 9)]


def test_killed_reproduction_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in children))
