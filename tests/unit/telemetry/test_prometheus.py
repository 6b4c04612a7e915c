"""Metrics in the format of Prometheus."""

import asyncio
import math
import re
import urllib.error
import urllib.request
from dataclasses import replace

import msgspec
import pytest

from springtide import errors
from springtide.domain.core.resources import GpuUse
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.data.streams import StreamCounts
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import ForecastStatus, OnlineState, OnlineTotals
from springtide.master import metrics
from springtide.rpc.messages.types import JobStatus, MemberReport, MemberView, RoleCount, RoleStatus, TrainingStatus
from springtide.telemetry import prometheus
from springtide.telemetry.prometheus import Family, MetricsServer, text
from tests.architecture.sources import ROOT


def test_each_metric_has_help_type_and_labels():
    lag = Family(name="lag_seconds", help="How long.", values=(({"partition": "3"}, 1.5), ({}, 2.0)))
    assert text([lag], {"job": "a"}) == (
        "# HELP lag_seconds How long.\n# TYPE lag_seconds gauge\n"
        'lag_seconds{job="a",partition="3"} 1.5\nlag_seconds{job="a"} 2\n'
    )


def test_label_values_with_quotes_and_newlines_are_escaped():
    made = text([Family(name="x", help='two\nlines \\ "q"', values=(({"name": 'a"b\\c\n'}, 1.0),))], {})
    assert made.splitlines() == ['# HELP x two\\nlines \\\\ "q"', "# TYPE x gauge", 'x{name="a\\"b\\\\c\\n"} 1']


@pytest.mark.parametrize(
    ("value", "said"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (0.1, "0.1"), (1e300, "1e+300")]
)
def test_non_finite_values_have_prometheus_names(value, said):
    assert text([Family(name="x", help="X.", values=(({}, value),))], {}).splitlines()[-1] == f"x {said}"


ONLINE = OnlineState(
    lag_s=3.5,
    slo_lag_s=1200,
    backlog=70,
    arriving=20.0,
    trained=21.0,
    utilization=0.8,
    expected=ForecastStatus(mean=25.0),
    totals=OnlineTotals(violation=0.026, lag_min=2204.0, down_min=0.0, worker_hours=242.0),
    stream=StreamCounts(late=4),
)
WORKER = MemberView(
    role=Role(RoleKind.WORKER, 1),
    alive=True,
    joined=True,
    report=MemberReport(step=7, seconds={"total": 2.5, "data": 0.5}),
    usage=RoleUsage(role=Role(RoleKind.WORKER, 1), incarnation=0, cpu_s=12.5, memory=1000),
)
SERVER = MemberView(
    role=Role(RoleKind.SERVER, 0),
    alive=True,
    joined=True,
    report=MemberReport(counters={"rows": 7.0, "evicted": 3.0, "lookup_ns": 2e9}),
)
STATUS = JobStatus(
    name="clicks",
    phase=JobPhase.RUNNING,
    why="",
    elapsed_s=5.0,
    samples=90,
    members=(WORKER, SERVER),
    online=ONLINE,
    roles=RoleStatus(workers=RoleCount(alive=2, wanted=3)),
    training=TrainingStatus(metrics={"auc": 0.71}, staleness=18, staleness_p50=5),
)
LINE = re.compile(r'[a-z_]+\{([a-z_]+="[^"\n]*",?)+\} -?[0-9.e+-]+')


def test_status_is_rendered_in_prometheus_format():
    told = metrics.text(STATUS, run="clicks-2")
    assert all(line.startswith("# ") or LINE.fullmatch(line) for line in told.splitlines())
    for line in (
        'springtide_samples_total{job_name="clicks",run="clicks-2"} 90',
        'springtide_roles_wanted{job_name="clicks",run="clicks-2",role="worker"} 3',
        'springtide_role_cpu_seconds_total{job_name="clicks",run="clicks-2",role="worker-1"} 12.5',
        'springtide_worker_steps_total{job_name="clicks",run="clicks-2",role="worker-1"} 7',
        'springtide_worker_step_seconds_total{job_name="clicks",run="clicks-2",role="worker-1",part="data"} 0.5',
        'springtide_server_busy_seconds_total{job_name="clicks",run="clicks-2",role="server-0",kind="read"} 2',
        'springtide_table_rows{job_name="clicks",run="clicks-2",role="server-0"} 7',
        'springtide_table_rows_evicted_total{job_name="clicks",run="clicks-2",role="server-0"} 3',
        'springtide_stream_slo_violation_ratio{job_name="clicks",run="clicks-2"} 0.026',
        'springtide_stream_not_trained_total{job_name="clicks",run="clicks-2",why="late"} 4',
        'springtide_metric{job_name="clicks",run="clicks-2",metric="auc"} 0.71',
        'springtide_push_staleness{job_name="clicks",run="clicks-2",quantile="0.5"} 5',
        'springtide_push_staleness{job_name="clicks",run="clicks-2",quantile="1"} 18',
        'springtide_phase{job_name="clicks",run="clicks-2",phase="running"} 1',
    ):
        assert line in told.splitlines()
    assert told.count("# TYPE") == len({line.split()[2] for line in told.splitlines() if line.startswith("# TYPE")})


def test_every_metric_is_declared_once_with_its_labels():
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names)) and all(name.startswith("springtide_") for name in names)
    declared = {metric.name: metric for metric in metrics.METRICS}
    for family in metrics.families(STATUS):
        metric = declared[family.name]
        assert all(set(labels) == set(metric.labels) for labels, _ in family.values), family.name
        assert (metric.kind == "counter") == metric.name.endswith("_total"), family.name


def test_grafana_dashboard_uses_metrics_that_exist():
    text = (ROOT / "deploy" / "grafana.json").read_text()
    panels = msgspec.json.decode(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    unknown = set(re.findall(r"springtide_\w+", text)) - {metric.name for metric in metrics.METRICS}
    assert not unknown, "change deploy/grafana.json"


def test_gpu_worker_has_its_metrics():
    assert "gpu" not in metrics.text(STATUS)
    usage = replace(WORKER.usage, gpu=GpuUse(memory=3 << 30, allocated=2 << 30, total=80 << 30))
    on_gpu = msgspec.structs.replace(STATUS, members=(msgspec.structs.replace(WORKER, usage=usage), SERVER))
    told = metrics.text(on_gpu).splitlines()
    assert f'springtide_gpu_memory_bytes{{job_name="clicks",role="worker-1"}} {3 << 30}' in told
    assert f'springtide_gpu_memory_total_bytes{{job_name="clicks",role="worker-1"}} {80 << 30}' in told
    assert not any("gpu_busy" in line for line in told), "the driver did not say"


def test_job_without_a_stream_has_no_stream_metrics():
    assert "stream" not in metrics.text(JobStatus(name="a", phase=JobPhase.FINISHED, why="", elapsed_s=1.0))


def ask_server(ask, text=lambda: "x 1\n"):
    """Run `ask(address)` in a thread against a metrics server."""

    async def run():
        endpoint = MetricsServer(text)
        address = await endpoint.start(0)
        try:
            return await asyncio.to_thread(ask, address)
        finally:
            await endpoint.close()

    return asyncio.run(run())


def test_metrics_are_served_over_http():
    def ask(address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
            return reply.headers["Content-Type"], reply.read()

    assert ask_server(ask) == ("text/plain; version=0.0.4; charset=utf-8", b"x 1\n")


@pytest.mark.parametrize(("path", "data", "code"), [("/etc/passwd", None, 404), ("/metrics", b"x", 405)])
def test_other_paths_are_refused(path, data, code):
    def ask(address):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}{path}", data, timeout=60)
        with caught.value as refused:
            return refused.code

    assert ask_server(ask) == code


def test_failing_metrics_return_an_error_and_keep_the_server_running():
    def ask(address):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/metrics", timeout=60)
        with caught.value as failed:
            return failed.code, failed.read()

    def broken():
        raise ValueError("no figures")

    assert ask_server(ask, broken) == (500, b"ValueError: no figures\n")


def test_silent_client_is_disconnected(monkeypatch):
    monkeypatch.setattr(prometheus, "PATIENCE_S", 0.05)

    async def run():
        endpoint = MetricsServer(lambda: "")
        host, port = (await endpoint.start(0)).split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        await endpoint.close()

    asyncio.run(run())


def test_port_in_use_is_reported():
    async def run():
        first = MetricsServer(lambda: "")
        port = int((await first.start(0)).split(":")[1])
        with pytest.raises(errors.BadInput, match=f"--metrics-port {port}: cannot listen"):
            await MetricsServer(lambda: "").start(port)
        await first.close()

    asyncio.run(run())
