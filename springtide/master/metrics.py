"""Converts a job's status to Prometheus metrics, for `springtide metrics` and `telemetry.prometheus`."""

from typing import Literal

from springtide.domain.core.roles import RANKED
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import OnlineState
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import prometheus
from springtide.telemetry.prometheus import Family, single


def text(status: JobStatus, *, run: str = "") -> str:
    """Return the metrics for Prometheus. `run` is the run's folder, which distinguishes runs of the same name."""
    labels = {"job_name": status.name, **({"run": run} if run else {})}
    return prometheus.text(families(status), labels)


def families(status: JobStatus) -> list[Family]:
    phases = tuple(({"phase": str(phase)}, float(phase is status.phase)) for phase in JobPhase)
    training, master = status.training, status.master
    found = [
        Family(name="springtide_phase", help="1 for the job's present phase, 0 for the others.", values=phases),
        *single("springtide_elapsed_seconds", "Time since the job began.", status.elapsed_s),
        *single("springtide_samples_total", "Samples trained so far.", status.samples, kind="counter"),
        *single(
            "springtide_samples_per_second",
            "Samples trained per second, over the last seconds.",
            training.samples_per_s,
        ),
        *single("springtide_loss", "Mean of the losses that workers reported last.", training.loss),
        *single(
            "springtide_relaunches_total", "Number of relaunched processes.", status.roles.relaunches, kind="counter"
        ),
        *single("springtide_master_term", "Number of the present master; each takeover adds 1.", master.term),
        *single("springtide_checkpoint", "Number of the last complete checkpoint.", status.checkpoints.number),
        *single(
            "springtide_disk_full", "1 while the master waits for space on its disk.", int(bool(master.disk_trouble))
        ),
        *single("springtide_slots_moving", "Slots that are moving to another server.", status.roles.slots_moving),
        *roles(status),
    ]
    if training.staleness is not None:
        median, most = float(training.staleness_p50 or 0), float(training.staleness)
        pushes = (({"quantile": "0.5"}, median), ({"quantile": "1"}, most))
        says = "Pushes that a server applied between a worker's read of rows and its push of their gradients."
        found.append(Family(name="springtide_push_staleness", help=says, values=pushes))
    if training.metrics:
        values = tuple(({"metric": name}, value) for name, value in sorted(training.metrics.items()))
        found.append(Family(name="springtide_metric", help="Metrics that the script reports.", values=values))
    return found + (online(status.online) if status.online is not None else [])


def roles(status: JobStatus) -> list[Family]:
    counts = {str(kind): status.roles.of_kind(kind) for kind in RANKED}
    there = tuple(({"role": role}, float(count.alive)) for role, count in counts.items())
    wanted = tuple(({"role": role}, float(count.wanted)) for role, count in counts.items())
    used = [member for member in status.members if member.usage is not None and member.alive]
    cpu = tuple(({"role": str(single.role)}, single.usage.cpu_s) for single in used if single.usage)
    memory = tuple(({"role": str(single.role)}, float(single.usage.memory)) for single in used if single.usage)
    found = [
        Family(name="springtide_roles", help="Running processes, by role.", values=there),
        Family(name="springtide_roles_wanted", help="Wanted processes, by role.", values=wanted),
    ]
    if used:
        found += [
            Family(
                name="springtide_role_cpu_seconds_total", help="CPU time of each process.", kind="counter", values=cpu
            ),
            Family(name="springtide_role_memory_bytes", help="Memory of each process.", values=memory),
        ]
    return found + gpus(status) + tables(status)


def gpus(status: JobStatus) -> list[Family]:
    """Return the GPU use of the roles that have one. In a job without GPUs there are no such metrics."""
    figures = (
        ("memory", "springtide_gpu_memory_bytes", "GPU memory that a process reserves."),
        ("allocated", "springtide_gpu_memory_allocated_bytes", "GPU memory in tensors of a process."),
        ("total", "springtide_gpu_memory_total_bytes", "Memory of the GPU of a process."),
        ("busy", "springtide_gpu_busy_ratio", "Share of time in which the GPU of a process ran kernels of anybody."),
    )
    uses = {str(one.role): one.usage.gpu for one in status.members if one.alive and one.usage and one.usage.gpu}
    found = []
    for name, metric, says in figures:
        known = {role: getattr(use, name) for role, use in uses.items() if getattr(use, name) is not None}
        values = tuple(({"role": role}, float(value)) for role, value in known.items())
        found += [Family(name=metric, help=says, values=values)] if values else []
    return found


def tables(status: JobStatus) -> list[Family]:
    """Return table sizes by server. Rows that have expired (`ttl`) count until their server removes them."""
    figures: tuple[tuple[str, str, str, Literal["gauge", "counter"]], ...] = (
        ("rows", "springtide_table_rows", "Rows in all tables of a server.", "gauge"),
        ("table_bytes", "springtide_table_bytes", "Memory of all tables of a server.", "gauge"),
        ("created", "springtide_table_rows_created_total", "Rows created since the server process started.", "counter"),
        (
            "evicted",
            "springtide_table_rows_evicted_total",
            "Rows evicted because their ttl ended or memory was short.",
            "counter",
        ),
    )
    found = []
    for counter, name, says, kind in figures:
        members = [member for member in status.members if member.alive and counter in member.report.counters]
        values = tuple(({"role": str(entry.role)}, entry.report.counters[counter]) for entry in members)
        found += [Family(name=name, help=says, kind=kind, values=values)] if members else []
    return found


def online(state: OnlineState) -> list[Family]:
    """Return metrics of how a job keeps up with its stream, including the four of section 4.1 of the Kale paper."""
    trouble = tuple(
        ({"why": name}, float(getattr(state.stream, name))) for name in ("late", "corrupt", "oversized", "expired")
    )
    lags = (({"quantile": "0.5"}, state.lag_p50_s), ({"quantile": "0.99"}, state.lag_p99_s))
    prefix = "springtide_stream_"
    return [
        *single(f"{prefix}lag_seconds", "Waiting time of the oldest untrained sample.", state.lag_s),
        *single(f"{prefix}lag_promised_seconds", "Longest lag that the job's SLO allows.", state.slo_lag_s),
        Family(
            name=f"{prefix}append_to_trained_seconds",
            help="Time from append to training, of recently trained samples.",
            values=lags,
        ),
        *single(f"{prefix}backlog_samples", "Samples that arrived and are not trained yet.", state.backlog),
        *single(
            f"{prefix}arriving_per_second", "Samples that arrived per second, over the last minutes.", state.arriving
        ),
        *single(f"{prefix}trained_per_second", "Samples trained per second, over the last minutes.", state.trained),
        *single(f"{prefix}forecast_per_second", "Forecast arrivals per second: the mean.", state.expected.mean),
        *single(
            f"{prefix}forecast_high_per_second", "Forecast arrivals per second: the 90% quantile.", state.expected.high
        ),
        *single(
            f"{prefix}capacity_per_second", "Samples per second that the present workers can train.", state.capacity
        ),
        *single(f"{prefix}utilization_ratio", "Share of time in which workers had work.", state.utilization),
        *single(f"{prefix}cannot_keep_up", "1 if no allowed number of workers is enough.", float(bool(state.alert))),
        *single(f"{prefix}scalings_total", "Changes of the number of workers.", state.scaling.changes, kind="counter"),
        *single(f"{prefix}slo_violation_ratio", "Share of time with a lag above the SLO.", state.totals.violation),
        *single(f"{prefix}accumulated_lag_minutes", "Sum of the lag in each minute, in minutes.", state.totals.lag_min),
        *single(f"{prefix}downtime_minutes", "Time without training because of scaling.", state.totals.down_min),
        *single(f"{prefix}worker_hours", "Worker hours used so far.", state.totals.worker_hours),
        *single(f"{prefix}records_total", "Records trained so far.", state.stream.records, kind="counter"),
        *single(
            f"{prefix}forwarded_total",
            "Batches that workers forwarded to other workers.",
            state.stream.forwarded,
            kind="counter",
        ),
        *single(
            f"{prefix}letters_not_kept_total",
            "Dead letters that were counted but not stored.",
            state.stream.unkept,
            kind="counter",
        ),
        Family(
            name=f"{prefix}not_trained_total",
            help="Records that were not trained, by reason.",
            kind="counter",
            values=trouble,
        ),
    ]
