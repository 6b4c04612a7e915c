"""Printing never fails or blocks: lost readers, stalled readers and full disks only lose output."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from springtide.telemetry import output
from springtide.telemetry.output import SteadyOutput


@pytest.fixture
def pipe():
    ours, theirs = os.pipe()
    yield ours, theirs
    for descriptor in (ours, theirs):
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EBADF


def test_printed_output_arrives(pipe):
    ours, theirs = pipe
    SteadyOutput(theirs).write(b"a line\n")
    assert os.read(ours, 100) == b"a line\n"


def test_closed_reader_does_not_fail_the_writer(pipe):
    ours, theirs = pipe
    os.close(ours)
    steady = SteadyOutput(theirs)
    assert [steady.write(b"a line\n") for _ in range(3)] == [7, 7, 7]
    steady.finish()


def test_closed_descriptor_does_not_fail_the_writer(pipe):
    _, theirs = pipe
    os.close(theirs)
    assert SteadyOutput(theirs).write(b"a line\n") == 7


def test_resumed_reader_gets_all_output_in_order(pipe):
    ours, theirs = pipe
    steady = SteadyOutput(theirs)
    said = [f"line {number}\n".encode() for number in range(20_000)]  # more than a pipe holds
    for line in said:
        steady.write(line)
    found = bytearray()

    def read():
        while len(found) < sum(map(len, said)):
            found.extend(os.read(ours, 65536))

    reader = threading.Thread(target=read)
    reader.start()
    steady.finish()
    reader.join()
    assert bytes(found) == b"".join(said)


def test_lost_output_is_counted_and_reported(pipe, monkeypatch):
    monkeypatch.setattr(output, "MOST_HELD", 1000)
    ours, theirs = pipe
    os.set_blocking(theirs, False)
    full = 0
    while True:
        try:
            full += os.write(theirs, bytes(4096))
        except BlockingIOError:
            break
    steady = SteadyOutput(theirs)
    for _ in range(3):
        steady.write(b"x" * 600)
    while full:
        full -= len(os.read(ours, full))
    steady.write(b"again\n")
    assert (
        os.read(ours, 5000) == b"[1200 bytes of output were lost: its reader was too slow]\n" + b"x" * 600 + b"again\n"
    )


def test_full_disk_loses_only_the_output_without_room(tmp_path, monkeypatch):
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    steady, real, room = SteadyOutput(log), os.write, [False]

    def write(descriptor, data):
        if descriptor == log and not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    steady.write(b"one\n")
    steady.write(b"two\n")
    room[0] = True
    steady.write(b"three\n")
    os.close(log)
    assert (tmp_path / "log").read_text() == "[8 bytes of output were lost: No space left on device]\nthree\n"


PRINTING = """
import os, sys, threading
from springtide.telemetry import output
output.keep_going()
print("to", "nobody", flush=True)
sys.stdout.buffer.write(b"bytes")
print("to nobody", file=sys.stderr)
if not os.fork():
    print("from a child")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
output.finish()
os.write(3, b"done")
"""


@pytest.mark.process
@pytest.mark.parametrize("sink", ["/dev/full", "a pipe that nobody reads"])
def test_program_without_an_output_reader_ends_normally(sink, pipe):
    ours, theirs = pipe
    if sink == "/dev/full":
        out = os.open(sink, os.O_WRONLY)
    else:
        gone, out = os.pipe()
        os.close(gone)
    program = f"import os; os.dup2({theirs}, 3)\n{PRINTING}"
    done = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=out, pass_fds=[theirs])
    os.close(out)
    assert done.returncode == 0 and os.read(ours, 10) == b"done"
