"""Real producers of one log are killed at any moment: no torn record, no lost acknowledged append."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from springtide.data.stream.log import layout, stream
from springtide.data.stream.records import concat

PRODUCER = """
import sys
from pathlib import Path
from springtide.data.stream.log.stream import LogStream

name, producer, i = sys.argv[2], LogStream(Path(sys.argv[1])).writer(), 0
while True:
    producer.put(0, [b"%s %d %d %s" % (name.encode(), i, j, b"." * (i * 37 % 300)) for j in range(3)])
    i += 1
    print(i, flush=True)  # so many appends have returned
"""


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(folder), name], stdout=subprocess.PIPE, text=True, env=environment
    )


def kill_after(producer: subprocess.Popen[str], appends: int) -> int:
    """Kill a producer after it reported this many appends; return how many it reported in all."""
    assert producer.stdout is not None
    for line in producer.stdout:
        if int(line) >= appends:
            break
    producer.send_signal(signal.SIGKILL)
    told = [int(line) for line in producer.stdout if line.endswith("\n")]
    producer.stdout.close()
    producer.wait()
    return max(told, default=appends)


def check(folder: Path, told: dict[str, int]) -> None:
    """Every append is intact and in order; all acknowledged ones are there, and at most one more."""
    reader = stream.LogStream(folder).open()
    reader.assign({0: 0})
    pieces = []
    while chunks := reader.poll(0):
        pieces += [chunk.records for chunk in chunks]
    run = concat(pieces)
    assert run.offsets.tolist() == list(range(len(run)))
    words = [body.split(b" ") for body in run.bodies()]
    for name, count in told.items():
        own = [(int(i), int(j), len(rest)) for who, i, j, rest in words if who.decode() == name]
        assert own == [(i, j, i * 37 % 300) for i in range(len(own) // 3) for j in range(3)]
        assert count <= len(own) // 3 <= count + 1


def killed_in_turn(folder: Path, rounds: int) -> None:
    stream.create(folder, layout.LogSettings(partitions=1, segment_bytes=20_000))
    told: dict[str, int] = {}
    for i in range(rounds):
        first, second = start(folder, f"a{i}"), start(folder, f"b{i}")
        told[f"a{i}"] = kill_after(first, 50 + 13 * i)
        told[f"b{i}"] = kill_after(second, 80 + 7 * i)
        check(folder, told)


@pytest.mark.process
def test_two_killed_producers_leave_an_intact_log(tmp_path: Path) -> None:
    killed_in_turn(tmp_path / "log", rounds=1)


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_many_killed_producers_leave_an_intact_log(tmp_path: Path) -> None:
    killed_in_turn(tmp_path / "log", rounds=25)
