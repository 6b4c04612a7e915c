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
        Family(name="springtide_phase", help="1 for the phase that the job is in.", values=phases),
        *single("springtide_elapsed_seconds", "Since the job began.", status.elapsed_s),
        *single("springtide_samples_total", "Trained so far.", status.samples, kind="counter"),
        *single("springtide_samples_per_second", "Trained over the last seconds.", training.samples_per_s),
        *single("springtide_loss", "Mean over workers, as reported last.", training.loss),
        *single("springtide_relaunches_total", "Processes started again.", status.roles.relaunches, kind="counter"),
        *single("springtide_master_term", "Which master this is.", master.term),
        *single("springtide_checkpoint", "Number of the last complete checkpoint.", status.checkpoints.number),
        *single(
            "springtide_disk_full", "Whether the master waits for room on its disk.", int(bool(master.disk_trouble))
        ),
        *single("springtide_slots_moving", "Slots on their way to another server.", status.roles.slots_moving),
        *roles(status),
    ]
    if training.staleness is not None:
        median, most = float(training.staleness_p50 or 0), float(training.staleness)
        pushes = (({"quantile": "0.5"}, median), ({"quantile": "1"}, most))
        says = "Pushes that a server applied between the reading of rows and the push computed from them."
        found.append(Family(name="springtide_push_staleness", help=says, values=pushes))
    if training.metrics:
        values = tuple(({"metric": name}, value) for name, value in sorted(training.metrics.items()))
        found.append(Family(name="springtide_metric", help="As the script reports it.", values=values))
    return found + (online(status.online) if status.online is not None else [])


def roles(status: JobStatus) -> list[Family]:
    counts = {str(kind): status.roles.of_kind(kind) for kind in RANKED}
    there = tuple(({"role": role}, float(count.alive)) for role, count in counts.items())
    wanted = tuple(({"role": role}, float(count.wanted)) for role, count in counts.items())
    used = [member for member in status.members if member.usage is not None and member.alive]
    cpu = tuple(({"role": str(single.role)}, single.usage.cpu_s) for single in used if single.usage)
    memory = tuple(({"role": str(single.role)}, float(single.usage.memory)) for single in used if single.usage)
    found = [
        Family(name="springtide_roles", help="Processes that are there.", values=there),
        Family(name="springtide_roles_wanted", help="Processes that should be there.", values=wanted),
    ]
    if used:
        found += [
            Family(name="springtide_role_cpu_seconds_total", help="Of each process.", kind="counter", values=cpu),
            Family(name="springtide_role_memory_bytes", help="Of each process.", values=memory),
        ]
    return found + tables(status)


def tables(status: JobStatus) -> list[Family]:
    """Return table sizes by server. Rows past their ttl count until they are swept."""
    figures: tuple[tuple[str, str, str, Literal["gauge", "counter"]], ...] = (
        ("rows", "springtide_table_rows", "Of all tables of a server.", "gauge"),
        ("table_bytes", "springtide_table_bytes", "That they take there.", "gauge"),
        ("created", "springtide_table_rows_created_total", "Since the server's process began.", "counter"),
        ("evicted", "springtide_table_rows_evicted_total", "Past their ttl, or for want of room.", "counter"),
    )
    found = []
    for counter, name, says, kind in figures:
        told = [each for each in status.members if each.alive and counter in each.report.counters]
        values = tuple(({"role": str(each.role)}, each.report.counters[counter]) for each in told)
        found += [Family(name=name, help=says, kind=kind, values=values)] if told else []
    return found


def online(state: OnlineState) -> list[Family]:
    """Return metrics of how a job keeps up with its stream, including the four of section 4.1 of the Kale paper."""
    trouble = tuple(
        ({"why": name}, float(getattr(state.stream, name))) for name in ("late", "corrupt", "oversized", "expired")
    )
    lags = (({"quantile": "0.5"}, state.lag_p50_s), ({"quantile": "0.99"}, state.lag_p99_s))
    prefix = "springtide_stream_"
    return [
        *single(f"{prefix}lag_seconds", "How long the oldest untrained sample has waited.", state.lag_s),
        *single(f"{prefix}lag_promised_seconds", "A longer lag breaks the promise.", state.slo_lag_s),
        Family(name=f"{prefix}append_to_trained_seconds", help="Of samples trained of late.", values=lags),
        *single(f"{prefix}backlog_samples", "Samples that have come and are not trained.", state.backlog),
        *single(f"{prefix}arriving_per_second", "Samples that came in the last minutes.", state.arriving),
        *single(f"{prefix}trained_per_second", "Samples trained in the last minutes.", state.trained),
        *single(f"{prefix}forecast_per_second", "Samples that are expected to come now.", state.expected.mean),
        *single(f"{prefix}forecast_high_per_second", "What nine of ten values lie below.", state.expected.high),
        *single(f"{prefix}capacity_per_second", "What the workers that there are can train.", state.capacity),
        *single(f"{prefix}utilization_ratio", "Part of the time in which workers had work.", state.utilization),
        *single(f"{prefix}backup_workers", "Workers beside slow ones.", state.scaling.backups),
        *single(f"{prefix}cannot_keep_up", "1: no number of workers is enough.", float(bool(state.alert))),
        *single(f"{prefix}scalings_total", "Changes of the number of workers.", state.scaling.changes, kind="counter"),
        *single(f"{prefix}slo_violation_ratio", "Share of the time with too long a lag.", state.totals.violation),
        *single(f"{prefix}accumulated_lag_minutes", "Minutes of lag, minute by minute.", state.totals.lag_min),
        *single(f"{prefix}downtime_minutes", "Without training, for scaling.", state.totals.down_min),
        *single(f"{prefix}worker_hours", "Workers x time.", state.totals.worker_hours),
        *single(f"{prefix}records_total", "Trained by workers.", state.stream.records, kind="counter"),
        *single(
            f"{prefix}forwarded_total", "Batches that workers gave to others.", state.stream.forwarded, kind="counter"
        ),
        *single(f"{prefix}letters_not_kept_total", "Dead letters only counted.", state.stream.unkept, kind="counter"),
        Family(name=f"{prefix}not_trained_total", help="Records by why not.", kind="counter", values=trouble),
    ]
