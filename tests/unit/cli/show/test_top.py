"""`springtide top` on a real pseudo-terminal, and its views."""

import re

import msgspec
import pytest

from springtide.cli.show import job_drawings, top_views
from springtide.cli.show.job_drawings import SeenProgress, sparkline
from springtide.cli.show.top_views import VIEWS, TopData
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.rpc.messages.types import DataStatus, EpochProgress, MemberReport, MemberView
from springtide.telemetry.progress import ProgressPoint
from tests.unit.cli.show.terminals import Terminal
from tests.unit.cli.show.test_live_view import DECIDED, STATUS
from tests.unit.cli.show.test_stream_status import ENDED

WATCH = """
import sys, time
import msgspec
from rich.console import Console
from springtide.cli.show import top
from springtide.telemetry.logs import RunCard
from tests.unit.cli.show.test_top import STORY, job_at

class Reach:
    name, asked = "ctr", 0
    card = RunCard(name="ctr", script="train.py", began_at=1000.0)
    def running(self):
        return self.asked < LIMIT
    def status(self):
        self.asked += 1
        return job_at(self.asked)
    def story(self):
        return STORY

top.POLL_S = top.STORY_S = 0.01
print("left" if top.watch(Reach(), Console(highlight=False)) else "over")
"""
STORY = [
    {"at": 1003.0, "event": "decision", "what": "scale to 3 workers", "why": "the plan expects 40% more samples/s"},
    {
        "at": 1010.0,
        "event": "checkpoint",
        "number": 7,
        "outcome": "complete",
        "full": False,
        "bytes": 2_500_000,
        "seconds": 0.4,
        "samples": 9000,
        "begun_at": 1009.5,
    },
]


def usage(role, memory):
    return RoleUsage(role=role, cpu_s=1.0, memory=memory << 20, cpu_limit=2.0, memory_limit=1 << 30)


def job_at(number):
    """The status of a job, `number` statuses after its start."""
    worker, server = Role(RoleKind.WORKER, 0), Role(RoleKind.SERVER, 0)
    seconds = {"total": 2.0 * number, "data": 0.2 * number, "forward": 1.0 * number, "backward": 0.5 * number}
    counters = {"rows": 77_000.0 + number, "table_bytes": 12e6, "created": 10.0 * number, "evicted": 0.0}
    members = (
        MemberView(server, True, True, MemberReport(counters=counters), state="joined", usage=usage(server, 950)),
        MemberView(worker, True, True, MemberReport(step=100 * number, seconds=seconds), usage=usage(worker, 300)),
    )
    data = DataStatus(epoch=EpochProgress(2, 450, 1000), shards_done=61, shards_leased=4, shards_total=100)
    return msgspec.structs.replace(DECIDED, name="ctr", members=members, data=data)


def test_keys_change_the_view_and_a_resize_is_followed():
    with Terminal(WATCH.replace("LIMIT", "10**9")) as terminal:
        terminal.wait_for("epoch 2", " 45%", "rate", "loss", "decided", "q: quit")
        assert max(map(len, terminal.text.splitlines())) <= 80 and "\x1b[?1049h" in terminal.raw.decode()
        terminal.press("2")
        terminal.wait_for("WORKER          A STEP", "worker-0", "20.0 ms", gone="decided")
        terminal.press("3")
        terminal.wait_for("server-0", "950M", "of 1G")
        terminal.press("\x1b[C")
        terminal.wait_for("61 done  4 leased  35 pending")
        terminal.press("5")
        terminal.wait_for("rows in all tables")
        terminal.press("6")
        terminal.wait_for("0:09    0.4 s     2.4M      9.0k  complete, changes only")
        terminal.press("7")
        terminal.wait_for("0:03 scale to 3 workers: the plan expects 40% more samples/s")
        terminal.resize(100, 12)
        terminal.press("1")
        terminal.wait_for("more lines below")
        terminal.press("j" * 50)
        terminal.wait_for("decided", gone="more lines below")
        terminal.press("q")
        assert terminal.finish() == 0 and "left" in terminal.raw.decode().rpartition("\x1b[?1049l")[2]


def test_end_of_the_job_leaves_the_screen_and_no_color_is_respected():
    with Terminal(WATCH.replace("LIMIT", "5"), NO_COLOR="1") as terminal:
        assert terminal.finish() == 0 and b"over" in terminal.raw.rpartition(b"\x1b[?1049l")[2]
    assert not re.search(rb"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m", terminal.raw), "a colour in spite of NO_COLOR"


def test_dumb_terminal_gets_lines():
    with Terminal(
        "import springtide.cli.show.top as top\ntop.LINE_EVERY_S = 0\n" + WATCH.replace("LIMIT", "3"), TERM="dumb"
    ) as terminal:
        assert terminal.finish() == 0
    assert b"\x1b" not in terminal.raw and terminal.raw.count(b"running") == 3


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("status", [job_at(3), STATUS, DECIDED, ENDED], ids=["full", "plain", "decided", "stream"])
def test_every_view_fits_its_width(status, width):
    data = TopData(status, SeenProgress(), story=STORY, began_at=1000.0)
    data.take(status)
    data.take(status)
    for name, view in VIEWS.items():
        for ascii_only in (False, True):
            lines = [line for text in view(data, width, ascii_only) for line in text.plain.splitlines()]
            assert max(map(len, lines)) <= width, name
            assert not ascii_only or all(line.isascii() for line in lines), name


def test_slow_worker_is_marked():
    slow = msgspec.structs.replace(
        job_at(1).members[1], role=Role(RoleKind.WORKER, 1), report=MemberReport(step=100, seconds={"total": 6.0})
    )
    others = tuple(msgspec.structs.replace(job_at(1).members[1], role=Role(RoleKind.WORKER, rank)) for rank in (0, 2))
    data = TopData(msgspec.structs.replace(STATUS, members=(*others, slow)), SeenProgress())
    text = "\n".join(line.plain for line in top_views.steps(data, 80, False))
    assert "3.0 x median" in text.splitlines()[-1]


def test_sparklines_share_their_axis():
    points = [
        ProgressPoint(at=float(at), samples=at, samples_per_s=float(at), loss=None if at < 50 else 1.0 + at)
        for at in range(100)
    ]
    seen = SeenProgress(points)
    assert sparkline(seen.values(lambda point: point.samples_per_s, 10, None), low=0.0) == "▁▂▃▄▄▅▆▇▇█"
    assert sparkline(seen.values(lambda point: point.loss, 10, None)) == "     ▁▃▅▆█"
    assert sparkline(seen.values(lambda point: point.loss, 4, 20.0), ascii_only=True) == "_:+#"
    assert sparkline([2.0, 2.0]) == "▁▁" and sparkline([]) == ""


def test_time_left_in_the_epoch_is_estimated_from_the_rate():
    status = job_at(1)
    line = job_drawings.epoch_line(status, 80)
    assert line is not None and line.plain.endswith(" 45%  0:00 left") and len(line.plain) <= 80
    slow = msgspec.structs.replace(status, training=msgspec.structs.replace(status.training, samples_per_s=0.0))
    assert job_drawings.epoch_line(slow, 80).plain.rstrip().endswith("45%")
    assert job_drawings.epoch_line(STATUS, 80) is None, "the length of the data is unknown"
    assert [job_drawings.clock(seconds) for seconds in (5, 83, 3723)] == ["0:05", "1:23", "1:02:03"]
