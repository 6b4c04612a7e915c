"""Status of a stream's job: how it keeps up, in lines, JSON and metrics."""

import json

import msgspec
import pytest

from springtide.cli import app
from springtide.cli.common import render
from springtide.cli.common.render import line_of
from springtide.domain.data.streams import StreamCounts
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import ForecastStatus, OnlineState, OnlineTotals, ScalingStatus
from springtide.rpc.messages.types import DataStatus, JobStatus
from tests.unit.cli.show.test_status import folder, make_past_run, output  # noqa: F401 - folder is a fixture

STATE = OnlineState(
    lag_s=75.0,
    slo_lag_s=1200.0,
    backlog=12_345,
    arriving=800.0,
    trained=790.0,
    utilization=0.92,
    capacity=900.0,
    lag_p50_s=0.4,
    lag_p99_s=2.0,
    why="3 workers stay: 800 samples/s come",
    alert="cannot keep up: 5,000 samples/s come",
    expected=ForecastStatus(mean=1000.0, high=1200.0, why="like the last days"),
    scaling=ScalingStatus(fewest=1, most=4, changes=3),
    totals=OnlineTotals(hours=24.0, violation=0.026, lag_min=2204.0, down_min=1.5, worker_hours=242.0),
    stream=StreamCounts(late=7, corrupt=1, unkept=5, unkept_why="256 MiB are kept"),
)
ENDED = JobStatus(name="clicks", phase=JobPhase.STOPPED, why="stopped by Ctrl-C", elapsed_s=30.0, online=STATE)


def test_stream_status_fits_80_columns(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    lines = output(capsys, "status", "clicks")
    text = " ".join(" ".join(lines).split())
    for said in (
        "lag 75 s of 20.0 min allowed, 12,345 samples waiting",
        "1,000/s forecast (at most 1,200)",
        "1 to 4 workers: 3 workers stay",
        "ALERT cannot keep up",
        "lag above the limit 2.60% of the time",
        "2,204 min",
        "242.0 worker-hours",
        "letters 7 late, 1 corrupt; 5 of these records left no dead letter: 256 MiB are kept",
    ):
        assert said in text
    assert json.loads(*output(capsys, "status", "clicks", "--json"))["online"]["totals"]["violation"] == 0.026


def test_line_and_live_view_show_the_lag():
    running = msgspec.structs.replace(ENDED, phase=JobPhase.RUNNING, samples=10, data=DataStatus(shards_total=4))
    assert "4 partitions" in line_of(running) and "shards" not in line_of(running)
    assert "lag 75 s ALERT" in line_of(running) and len(line_of(running)) <= 80


def test_metrics_of_a_finished_job_are_available(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    assert app.main(["metrics", "clicks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'springtide_stream_lag_seconds{job_name="clicks",run="clicks"} 75' in lines
    assert app.main(["metrics", "clicks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["springtide_stream_worker_hours"] == [{"labels": {}, "value": 242.0}]


def test_top_of_a_finished_job_is_its_last_line(folder, capsys):  # noqa: F811
    make_past_run(folder, "clicks", began_at=100.0, status=ENDED)
    assert output(capsys, "top", "clicks", "--once")[-1].startswith("  30.0 s  stopped")


@pytest.mark.parametrize(("length", "said"), [(0.31, "0.3 s"), (45.0, "45 s"), (210.0, "3.5 min"), (7560.0, "2.1 h")])
def test_durations_are_short(length, said):
    assert render.duration(length) == said
