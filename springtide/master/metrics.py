"""Declares every metric of a job for Prometheus, and reads their values from a job's status.

`METRICS` is the whole list: `springtide metrics`, `--metrics-port`, docs/reference/metrics.md and the Grafana dashboard
in deploy/ follow it. The master's endpoint has the metrics of every role, with the label `role`. Next:
`telemetry.prometheus`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from springtide.domain.core.resources import GpuUse
from springtide.domain.core.roles import RANKED, RoleKind, RoleUsage
from springtide.domain.data.data_workers import FeedState
from springtide.domain.model.cache_rules import CacheUse
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import OnlineState
from springtide.rpc.messages.types import EpochProgress, JobStatus, MemberReport, MemberView
from springtide.telemetry import prometheus
from springtide.telemetry.prometheus import Family, Labels

Values = Iterable[tuple[Labels, float | None]]


class Metric(NamedTuple):
    """The declaration of one metric, and how to read its values. An unknown value is None and is left out."""

    name: str
    help: str
    values: Callable[[JobStatus], Values]
    kind: Literal["gauge", "counter"] = "gauge"
    labels: tuple[str, ...] = ()
    """Labels besides `job_name` and `run`."""


def text(status: JobStatus, *, run: str = "") -> str:
    """Return the metrics for Prometheus. `run` is the run's folder, which distinguishes runs of the same name."""
    labels = {"job_name": status.name, **({"run": run} if run else {})}
    return prometheus.text(families(status), labels)


def families(status: JobStatus) -> list[Family]:
    found = []
    for metric in METRICS:
        values = tuple((labels, float(value)) for labels, value in metric.values(status) if value is not None)
        if values:
            found.append(Family(name=metric.name, help=metric.help, kind=metric.kind, values=values))
    return found


def job(
    name: str, help: str, read: Callable[[JobStatus], float | None], kind: Literal["gauge", "counter"] = "gauge"
) -> Metric:
    """Declare a metric of the whole job."""
    return Metric(f"springtide_{name}", help, lambda status: [({}, read(status))], kind)


def cache(
    name: str, help: str, read: Callable[[CacheUse], float], kind: Literal["gauge", "counter"] = "gauge"
) -> Metric:
    return job(name, help, lambda status: None if (use := status.training.cache) is None else read(use), kind)


def epoch(name: str, help: str, read: Callable[[EpochProgress], float]) -> Metric:
    return job(name, help, lambda status: None if (now := status.data.epoch) is None else read(now))


def role(
    name: str,
    help: str,
    read: Callable[[MemberView], float | None],
    kind: Literal["gauge", "counter"] = "gauge",
) -> Metric:
    """Declare a metric of each running role."""
    return Metric(f"springtide_{name}", help, lambda status: of_roles(status, read), kind, ("role",))


def of_roles(status: JobStatus, read: Callable[[MemberView], float | None]) -> Values:
    return [({"role": str(member.role)}, read(member)) for member in status.members if member.alive]


def usage(
    name: str, help: str, read: Callable[[RoleUsage], float | None], kind: Literal["gauge", "counter"] = "gauge"
) -> Metric:
    return role(name, help, lambda member: read(member.usage) if member.usage else None, kind)


def gpu(name: str, help: str, read: Callable[[GpuUse], float | None]) -> Metric:
    return usage(name, help, lambda used: read(used.gpu) if used.gpu else None)


def server(name: str, help: str, counter: str, kind: Literal["gauge", "counter"] = "counter") -> Metric:
    """Declare a metric that is one counter of each server."""
    return role(name, help, lambda member: member.report.counters.get(counter), kind)


def worker(
    name: str, help: str, read: Callable[[MemberReport], float | None], kind: Literal["gauge", "counter"] = "counter"
) -> Metric:
    """Declare a metric of each worker's report."""
    return role(name, help, lambda member: read(member.report) if member.role.kind is RoleKind.WORKER else None, kind)


def feed(
    name: str, help: str, read: Callable[[FeedState], float | None], kind: Literal["gauge", "counter"] = "gauge"
) -> Metric:
    return worker(name, help, lambda report: read(report.feed) if report.feed and report.feed.room else None, kind)


def server_parts(status: JobStatus, names: Mapping[str, str], label: str, scale: float = 1.0) -> Values:
    """Return several counters of each server, told apart by a label."""
    return [
        ({"role": str(member.role), label: word}, member.report.counters[counter] * scale)
        for member in status.members
        if member.alive
        for counter, word in names.items()
        if counter in member.report.counters
    ]


def step_seconds(status: JobStatus) -> Values:
    return [
        ({"role": str(member.role), "part": part}, seconds)
        for member in status.members
        if member.alive
        for part, seconds in member.report.seconds.items()
    ]


def stream(
    name: str, help: str, read: Callable[[OnlineState], float | None], kind: Literal["gauge", "counter"] = "gauge"
) -> Metric:
    """Declare a metric of a job that reads a stream."""
    return job(f"stream_{name}", help, lambda status: None if status.online is None else read(status.online), kind)


def lags(status: JobStatus) -> Values:
    state = status.online
    return [] if state is None else [({"quantile": "0.5"}, state.lag_p50_s), ({"quantile": "0.99"}, state.lag_p99_s)]


def not_trained(status: JobStatus) -> Values:
    names = () if status.online is None else ("late", "corrupt", "oversized", "expired")
    return [({"why": name}, getattr(status.online.stream, name)) for name in names if status.online is not None]


def staleness(status: JobStatus) -> Values:
    training = status.training
    if training.staleness is None:
        return []
    return [({"quantile": "0.5"}, training.staleness_p50 or 0), ({"quantile": "1"}, training.staleness)]


def shards(status: JobStatus) -> Values:
    data = status.data
    counts = {"done": data.shards_done, "leased": data.shards_leased, "total": data.shards_total}
    return [({"state": state}, count) for state, count in counts.items()] if data.shards_total else []


JOB = (
    Metric(
        "springtide_phase",
        "1 for the job's present phase, 0 for the others.",
        lambda status: [({"phase": str(phase)}, phase is status.phase) for phase in JobPhase],
        labels=("phase",),
    ),
    job("elapsed_seconds", "Time since the job began.", lambda status: status.elapsed_s),
    job("samples_total", "Samples trained so far.", lambda status: status.samples, "counter"),
    job(
        "samples_per_second",
        "Samples trained per second, over the last seconds.",
        lambda status: status.training.samples_per_s,
    ),
    job("loss", "Mean of the losses that workers reported last.", lambda status: status.training.loss),
    Metric(
        "springtide_metric",
        "Metrics that the script reports.",
        lambda status: [({"metric": name}, value) for name, value in sorted(status.training.metrics.items())],
        labels=("metric",),
    ),
    Metric(
        "springtide_push_staleness",
        "Pushes that a server applied between a worker's read of rows and its push of their gradients.",
        staleness,
        labels=("quantile",),
    ),
    Metric("springtide_shards", "Shards of the data by state; total counts all.", shards, labels=("state",)),
    job("shards_given_up", "Ranges of the data that nobody could read.", lambda status: len(status.data.poisoned)),
    epoch("epoch", "Number of the present epoch, from 1.", lambda now: now.number),
    epoch("epoch_ratio", "Share of the present epoch that is trained.", lambda now: now.done / now.samples),
    cache(
        "cache_rows_found_total",
        "Rows that steps found in the workers' caches.",
        lambda use: use.hits,
        "counter",
    ),
    cache(
        "cache_rows_pulled_total",
        "Rows that steps of workers with caches pulled from servers.",
        lambda use: use.pulled,
        "counter",
    ),
    cache("cache_bytes", "Memory of the rows in the workers' caches.", lambda use: use.size),
    job("checkpoint", "Number of the last complete checkpoint.", lambda status: status.checkpoints.number),
    job(
        "checkpoint_begun_timestamp_seconds",
        "Time of day at which the last complete checkpoint began.",
        lambda status: status.checkpoints.begun_at or None,
    ),
    job(
        "checkpoint_failing",
        "1 if the last checkpoint was not completed.",
        lambda status: bool(status.checkpoints.trouble),
    ),
    job(
        "checkpoint_uploaded",
        "Number of the last checkpoint at the checkpoint URL.",
        lambda status: status.checkpoints.uploaded or None,
    ),
    job("master_term", "Number of the present master; each takeover adds 1.", lambda status: status.master.term),
    job(
        "master_loop_lag_seconds",
        "Longest delay of the master's event loop in the last ten seconds.",
        lambda status: status.master.loop_lag_s,
    ),
    job(
        "disk_full",
        "1 while the master waits for space on its disk.",
        lambda status: bool(status.master.disk_trouble),
    ),
)
ROLES = (
    Metric(
        "springtide_roles",
        "Running processes, by role.",
        lambda status: [({"role": str(kind)}, status.roles.of_kind(kind).alive) for kind in RANKED],
        labels=("role",),
    ),
    Metric(
        "springtide_roles_wanted",
        "Wanted processes, by role.",
        lambda status: [({"role": str(kind)}, status.roles.of_kind(kind).wanted) for kind in RANKED],
        labels=("role",),
    ),
    job("relaunches_total", "Number of relaunched processes.", lambda status: status.roles.relaunches, "counter"),
    job("slots_moving", "Slots that are moving to another server.", lambda status: status.roles.slots_moving),
    role("role_incarnation", "How often a role was started again.", lambda member: member.incarnation),
    usage("role_cpu_seconds_total", "CPU time of each process.", lambda used: used.cpu_s, "counter"),
    usage("role_cpu_limit_cores", "Cores that a process may use.", lambda used: used.cpu_limit),
    usage(
        "role_cpu_throttled_seconds_total",
        "Time of the periods in which a process used up its CPU limit.",
        lambda used: used.throttled_s if used.cpu_limit is not None else None,
        "counter",
    ),
    usage("role_memory_bytes", "Memory of each process.", lambda used: used.memory),
    usage("role_memory_limit_bytes", "Memory that a process may use.", lambda used: used.memory_limit),
    gpu("gpu_memory_bytes", "GPU memory that a process reserves.", lambda used: used.memory),
    gpu("gpu_memory_allocated_bytes", "GPU memory in tensors of a process.", lambda used: used.allocated),
    gpu("gpu_memory_total_bytes", "Memory of the GPU of a process.", lambda used: used.total),
    gpu(
        "gpu_busy_ratio",
        "Share of time in which the GPU of a process ran kernels of anybody.",
        lambda used: used.busy,
    ),
    worker("worker_steps_total", "Steps of a worker's process.", lambda report: report.step),
    worker("worker_samples_total", "Samples that a worker's process has trained.", lambda report: report.samples),
    Metric(
        "springtide_worker_step_seconds_total",
        "Time of a worker's steps by part. total covers all; data, pull_wait, forward, backward and push_wait are its "
        "phases; gradient, update, synchronization and lookup are the terms of the performance model.",
        step_seconds,
        "counter",
        ("role", "part"),
    ),
    feed("input_queue_batches", "Batches of data workers that wait in a worker.", lambda state: state.queued),
    feed("input_queue_capacity", "Batches of data workers for which a worker has room.", lambda state: state.room),
    feed(
        "input_wait_seconds_total",
        "Time that a worker's loop waited for batches of data workers.",
        lambda state: state.waited_s,
        "counter",
    ),
    role(
        "data_worker_batches_total",
        "Batches that a data worker's process has made.",
        lambda member: member.report.counters.get("made"),
        "counter",
    ),
)
SERVERS = (
    server("table_rows", "Rows in all tables of a server. Expired rows count until they are removed.", "rows", "gauge"),
    server("table_bytes", "Memory of all tables of a server.", "table_bytes", "gauge"),
    server("table_rows_created_total", "Rows created since the server process started.", "created"),
    server("table_rows_evicted_total", "Rows evicted because their ttl ended or memory was short.", "evicted"),
    server("server_connections", "Open connections of a server.", "connections", "gauge"),
    server("server_refused_total", "Requests that a server refused, such as those of an older incarnation.", "refused"),
    Metric(
        "springtide_server_requests_total",
        "Requests that a server has answered, by kind.",
        lambda status: server_parts(status, {"pulls": "read", "pushes": "update"}, "kind"),
        "counter",
        ("role", "kind"),
    ),
    Metric(
        "springtide_server_keys_total",
        "Keys in the requests of a server, by kind.",
        lambda status: server_parts(status, {"pulled_keys": "read", "pushed_keys": "update"}, "kind"),
        "counter",
        ("role", "kind"),
    ),
    Metric(
        "springtide_server_busy_seconds_total",
        "Time that a server's threads worked on its tables, by kind.",
        lambda status: server_parts(status, {"lookup_ns": "read", "update_ns": "update"}, "kind", 1e-9),
        "counter",
        ("role", "kind"),
    ),
    Metric(
        "springtide_server_bytes_total",
        "Bytes that a server has received and sent.",
        lambda status: server_parts(status, {"bytes_in": "in", "bytes_out": "out"}, "direction"),
        "counter",
        ("role", "direction"),
    ),
)
STREAMS = (
    stream("lag_seconds", "Waiting time of the oldest untrained sample.", lambda state: state.lag_s),
    stream("lag_promised_seconds", "Longest lag that the job's SLO allows.", lambda state: state.slo_lag_s),
    Metric(
        "springtide_stream_append_to_trained_seconds",
        "Time from append to training, of recently trained samples.",
        lags,
        labels=("quantile",),
    ),
    stream("backlog_samples", "Samples that arrived and are not trained yet.", lambda state: state.backlog),
    stream(
        "arriving_per_second", "Samples that arrived per second, over the last minutes.", lambda state: state.arriving
    ),
    stream("trained_per_second", "Samples trained per second, over the last minutes.", lambda state: state.trained),
    stream("forecast_per_second", "Forecast arrivals per second: the mean.", lambda state: state.expected.mean),
    stream(
        "forecast_high_per_second",
        "Forecast arrivals per second: the 90% quantile.",
        lambda state: state.expected.high,
    ),
    stream(
        "capacity_per_second", "Samples per second that the present workers can train.", lambda state: state.capacity
    ),
    stream("utilization_ratio", "Share of time in which workers had work.", lambda state: state.utilization),
    stream("cannot_keep_up", "1 if no allowed number of workers is enough.", lambda state: bool(state.alert)),
    stream("scalings_total", "Changes of the number of workers.", lambda state: state.scaling.changes, "counter"),
    stream("slo_violation_ratio", "Share of time with a lag above the SLO.", lambda state: state.totals.violation),
    stream("accumulated_lag_minutes", "Sum of the lag in each minute, in minutes.", lambda state: state.totals.lag_min),
    stream("downtime_minutes", "Time without training because of scaling.", lambda state: state.totals.down_min),
    stream("worker_hours", "Worker hours used so far.", lambda state: state.totals.worker_hours),
    stream("records_total", "Records trained so far.", lambda state: state.stream.records, "counter"),
    stream(
        "forwarded_total",
        "Batches that workers forwarded to other workers.",
        lambda state: state.stream.forwarded,
        "counter",
    ),
    stream(
        "letters_not_kept_total",
        "Dead letters that were counted but not stored.",
        lambda state: state.stream.unkept,
        "counter",
    ),
    Metric(
        "springtide_stream_not_trained_total",
        "Records that were not trained, by reason.",
        not_trained,
        "counter",
        ("why",),
    ),
)
METRICS: tuple[Metric, ...] = (*JOB, *ROLES, *SERVERS, *STREAMS)
