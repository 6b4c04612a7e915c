"""Formats a job's status in 80 columns, as one line or as lines of facts. Formats the outcome of a job as text, JSON
and exit code."""

import textwrap
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from springtide.domain.core.resources import GpuUse, show_memory, sum_gpus
from springtide.domain.core.roles import RoleKind
from springtide.domain.data.data_workers import FeedState
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.domain.spec.online_job import OnlineState
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import output

WIDTH = 80
MEASURED = frozenset(
    ("auc", "loss", "accuracy", "acc", "rate", "error", "ratio", "share", "precision", "recall", "f1", "lr")
)
"""A metric whose name contains one of these words is a measurement, not a count, even if its value is 0 or 1."""


def data_workers_text(status: JobStatus) -> str:
    count, why, feed = status.roles.data_workers, status.roles.data_workers_why, status.data.feed
    if not count.wanted and not count.alive:
        return f"none: {why}" if why else ""
    parts = [f"{count.alive}/{count.wanted} data workers"]
    if feed is not None and feed.room:
        parts.append(queue_text(feed))
    return ", ".join(parts) + (f"; {why}" if why else "")


def queue_text(feed: FeedState) -> str:
    waited = f", waited {feed.waited_s / feed.looped_s:.0%} of the time" if feed.looped_s else ""
    checked = f", {feed.checked} computed here too, with equal results" if feed.checked else ""
    return f"{feed.queued} of {feed.room} batches ready{waited}{checked}"


def stream_lines(state: OnlineState) -> list[str]:
    expected, scaling, totals = state.expected, state.scaling, state.totals
    forecast = "" if expected.mean is None else f", {expected.mean:,.0f}/s forecast (at most {expected.high:,.0f})"
    capacity = "" if state.capacity is None else f", workers could train {state.capacity:,.0f}/s"
    busy = "" if state.utilization is None else f", busy {state.utilization:.0%}"
    lines = [
        f"lag     {duration(state.lag_s)} of {duration(state.slo_lag_s)} allowed, {state.backlog:,} samples waiting; "
        f"append to trained {duration(state.lag_p50_s)} at the median, {duration(state.lag_p99_s)} for 99%",
        f"traffic {state.arriving:,.0f}/s arrive, {state.trained:,.0f}/s trained{forecast}{capacity}{busy}",
    ]
    may = f"{scaling.fewest} to {scaling.most} workers" if scaling.fewest < scaling.most else "no traffic"
    lines.append(f"follows {may}: {state.why}")
    if expected.trouble:
        lines.append(f"forecast {expected.trouble}")
    if state.alert:
        lines.append(f"ALERT   {state.alert}")
    if totals.hours:
        lines.append(
            f"kept    over {totals.hours:.1f} h: lag above the limit {totals.violation:.2%} of the time, accumulated "
            f"{totals.lag_min:,.0f} min, {totals.down_min:.1f} min down, {totals.worker_hours:.1f} worker-hours"
        )
    if lost := lost_words(state):
        unkept, why = state.stream.unkept, state.stream.unkept_why
        only = f"; {unkept:,} of these records left no dead letter: {why}" if unkept else ""
        lines.append(f"letters {lost}{only}")
    return lines


def lost_words(state: OnlineState) -> str:
    counts = [(name, getattr(state.stream, name)) for name in ("late", "corrupt", "oversized", "expired")]
    return ", ".join(f"{count:,} {name}" for name, count in counts if count)


def duration(length_s: float) -> str:
    """Format seconds as `0.3 s`, `45 s`, `3.5 min` or `2.1 h`."""
    if length_s < 10:
        return f"{length_s:.1f} s"
    if length_s < 120:
        return f"{length_s:.0f} s"
    return f"{length_s / 60:.1f} min" if length_s < 7200 else f"{length_s / 3600:.1f} h"


def line_of(status: JobStatus) -> str:
    online, training, gpu = status.online, status.training, gpu_of(status)
    metrics = {f"metric {name}": f"{name} {text}" for name, text in metric_cells(status)}
    shown = {
        "shards": progress(status),
        "samples": f"{short(status.samples)} samples",
        "rate": f"{short(training.samples_per_s)}/s",
        "lag": "" if online is None else f"lag {duration(online.lag_s)}{' ALERT' if online.alert else ''}",
        "loss": "" if training.loss is None else f"loss {training.loss:.4f}",
        "gpu": "" if gpu is None or gpu.busy is None else f"gpu {gpu.busy:.0%}",
        **metrics,
        "ending": ending(status),
        "workers": missing(status, RoleKind.WORKER),
        "servers": missing(status, RoleKind.SERVER),
    }
    important = [
        "ending",
        "shards",
        "rate",
        "lag",
        "loss",
        "workers",
        "servers",
        *(["metric auc"] if "auc" in training.metrics else []),
        "samples",
        "gpu",
        *metrics,
    ]
    head = f"{status.elapsed_s:6.1f} s  {status.phase}"
    room, chosen = WIDTH - len(head), set[str]()
    for name in dict.fromkeys(important):
        if shown[name] and len(shown[name]) + 2 <= room:
            room -= len(shown[name]) + 2
            chosen.add(name)
    return "  ".join([head, *(text for name, text in shown.items() if name in chosen)])


def progress(status: JobStatus) -> str:
    done, total = status.data.shards_done, status.data.shards_total
    if not total:
        return ""
    if status.online is not None:
        return f"{total} partition{'' if total == 1 else 's'}"
    return f"shards {done}/{total}"


def headline(status: JobStatus) -> list[str]:
    lines = wrap(f"job {status.name} is {status.phase} since {status.elapsed_s:.0f} s: {numbers(status)}")
    return lines + measures(status)


def facts(status: JobStatus, width: int = WIDTH) -> list[str]:
    """Return at least one labelled line for each known fact about a job. A fact without text has no line."""
    data, master, running = status.data, status.master, not status.phase.over
    # for a job that has ended, the outcome already reports these facts
    reported = not running and (status.checkpoints.trouble or status.phase is not JobPhase.FINISHED)
    lines = {
        "why": status.why if running else "",
        "ending": ending(status),
        "disk": master.disk_trouble if running else "",
        "shards": shards_text(status),
        "roles": f"{alive_text(status, RoleKind.WORKER)} workers, {alive_text(status, RoleKind.SERVER)} servers, "
        f"{f'{status.roles.relaunches} relaunched, ' if status.roles.relaunches else ''}master's term {master.term}"
        f"{'' if running else '; all have ended'}",
        "fed": data_workers_text(status),
        "gpu": gpu_fact(status) if running else "",
        "cache": "" if status.training.cache is None else str(status.training.cache),
        "saved": "" if reported else saved_text(status),
        "plan": "" if status.online is not None else plan_text(status),
        "decided": decision_of(status),
        "without": f"{data.samples_left_out:,} samples that could not be made; the first: {data.left_out[0]}"
        if running and data.left_out
        else "",
    }
    found = [f"{label:<7} {text}" for label, text in lines.items() if text]
    found += [] if status.online is None else stream_lines(status.online)
    found += [f"lost    {shard}" for shard in data.poisoned if running]
    return [part for line in found for part in wrap(line, width=width)]


def gpu_of(status: JobStatus) -> GpuUse | None:
    """Return the mean load and the memory of the workers' GPUs; None if no worker uses a GPU."""
    return sum_gpus(member.usage.gpu for member in status.members if member.usage and member.usage.gpu)


def gpu_fact(status: JobStatus) -> str:
    if (use := gpu_of(status)) is None:
        return ""
    busy = "" if use.busy is None else f"busy {use.busy:.0%} of the time, "
    return f"{busy}{show_memory(use.memory)} of memory reserved, {show_memory(use.allocated)} in tensors"


def shards_text(status: JobStatus) -> str:
    data = status.data
    if status.online is not None or not (data.shards_leased or data.epochs > 1):
        return ""
    leased = f", {data.shards_leased} leased" if data.shards_leased else ""
    epochs = f", {data.epochs} epochs" if data.epochs > 1 else ""
    return f"{data.shards_done:,} of {data.shards_total:,} done{leased}{epochs}"


def plan_text(status: JobStatus) -> str:
    plan = status.planning
    if not plan.stage:
        return ""
    if plan.target is not None:
        return f"{plan.stage}: becomes {plan.target}"
    return f"{plan.stage}: {plan.shape or 'not all roles have joined'}{', as planned' if plan.settled else ''}"


def saved_text(status: JobStatus) -> str:
    made = status.checkpoints
    if not made.number and not made.trouble:
        return ""
    last = f"checkpoint {made.number}, begun {short_time(time.time() - made.begun_at)} ago" if made.number else ""
    copied = f", copied up to {made.uploaded}" if made.uploaded else ""
    return (last or "no checkpoint yet") + copied + (f"; {made.trouble}" if made.trouble else "")


def short_time(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def ending(status: JobStatus) -> str:
    still = [
        str(member.role)
        for member in status.members
        if member.role.kind is RoleKind.WORKER and member.state == "joined"
    ]
    if status.phase is not JobPhase.DRAINING or status.data.shards_leased or not still:
        return ""
    return f"{still[0]}'s script still runs" if len(still) == 1 else f"{len(still)} scripts still run"


def alive(status: JobStatus, kind: RoleKind) -> tuple[int, int]:
    count = status.roles.of_kind(kind)
    if count.wanted:
        return count.alive, count.wanted
    members = [member for member in status.members if member.role.kind is kind]
    return sum(member.alive and member.joined for member in members), len(members)


def alive_text(status: JobStatus, kind: RoleKind) -> str:
    """Return `1/2` if one of two roles is running. For a job that is over, return how many roles it had."""
    there, wanted = alive(status, kind)
    return f"{wanted}" if status.phase.over else f"{there}/{wanted}"


def missing(status: JobStatus, kind: RoleKind) -> str:
    there, wanted = alive(status, kind)
    return f"{kind}s {there}/{wanted}" if there != wanted and not status.phase.over else ""


def decision_of(status: JobStatus) -> str:
    decision, why = status.master.decision, status.master.decision_why
    return f"{decision}: {why}" if why else decision


def saving_of(status: JobStatus) -> str:
    number, trouble = status.checkpoints.number, status.checkpoints.trouble
    last = f"checkpoint {number}" if number else "no checkpoint"
    return f"{last}; {trouble}" if trouble else last


def metric_cells(status: JobStatus) -> list[tuple[str, str]]:
    return [(name, show(name, value)) for name, value in sorted(status.training.metrics.items())]


def show(name: str, value: float) -> str:
    """Format a metric: a count as a whole number, any other metric with four places. Metrics with `MEASURED` names are
    never counts."""
    measured = abs(value) <= 1 and not MEASURED.isdisjoint(name.lower().split("_"))
    return f"{value:,.0f}" if value.is_integer() and not measured else f"{value:.4f}"


def short(number: float) -> str:
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= bound:
            return f"{number / bound:.1f}{unit}"
    return f"{number:.0f}"


def wrap(text: str, indent: str = " " * 8, width: int = WIDTH) -> list[str]:
    """Wrap text at the width; never break a long word such as a path."""
    return [
        part
        for line in text.splitlines() or [""]
        for part in textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]


def print_result(text: Iterable[str], found: Any, as_json: bool) -> None:
    """Print one JSON object if `--json` asks for it, else the lines of text."""
    print(msgspec.json.encode(found).decode() if as_json else "\n".join(text), flush=True)


def print_json(found: Any, as_json: bool) -> None:
    """Print one JSON object as the last line if `--json` asks for it. Used by verbs that first do long work and log it
    to standard output.
    """
    if as_json:
        print(msgspec.json.encode(found).decode(), flush=True)


OK, USER_CODE, INFRASTRUCTURE, INTERRUPTED = 0, 1, 3, 130


def exit_code(status: JobStatus) -> int:
    match status.phase:
        case JobPhase.FINISHED:
            return OK
        case JobPhase.STOPPED:
            return INTERRUPTED
        case _:
            return USER_CODE if status.blame is Blame.USER else INFRASTRUCTURE


def outcome_text(status: JobStatus, places: Mapping[str, str], *, debug: bool = False) -> str:
    lines = []
    if status.phase is JobPhase.FAILED:
        lines += [status.why, f"job {status.name} failed after {status.elapsed_s:.1f} s; {numbers(status)}"]
        lines += measures(status)
        if status.detail and debug:
            lines += ["", status.detail.rstrip(), ""]
        elif status.detail:
            lines.append(f"the traceback is in {places.get('trace', 'the log; --debug shows it here')}")
    elif status.phase is JobPhase.STOPPED:
        lines += [f"job {status.name} stopped after {status.elapsed_s:.1f} s: {status.why}", numbers(status)]
        lines += measures(status)
    else:
        lines.append(f"job {status.name} finished in {status.elapsed_s:.1f} s: {numbers(status)}")
        if not status.samples and not status.data.shards_total:
            lines += wrap("nothing was trained: the script never looped over the batches of job.prepare(...)")
        if status.samples and status.samples == status.training.samples_before:
            lines += wrap(
                "nothing was left to train: the checkpoint has all epochs of its data. To train new data, use "
                "--continue-from instead of --resume; to train these data again, give more epochs"
            )
        lines += measures(status)
    reported = status.why if status.phase is JobPhase.FAILED else ""
    poisoned = status.data.poisoned
    lines += [line for shard in poisoned if str(shard) not in reported for line in wrap(f"given up: {shard}")]
    if poisoned:
        lines.append("repair the data, or train without these samples: --poison skip")
    lines += left_out(status)
    if status.checkpoints.trouble:
        lines += wrap(f"saved   {saving_of(status)}")
    elif status.phase is not JobPhase.FINISHED and status.checkpoints.number:
        lines.append(f"saved   checkpoint {status.checkpoints.number}, from which --resume continues")
    lines += [f"{what:<7} {place}" for what, place in places.items() if what != "trace"]
    return output.redact("\n".join(lines))


def called(status: JobStatus, run: str) -> JobStatus:
    """Return the status with the name of the run's folder as the job's name, because a second run of a job has a folder
    of another name."""
    return msgspec.structs.replace(status, name=run)


def numbers(status: JobStatus) -> str:
    done, total = status.data.shards_done, status.data.shards_total
    shards = f" ({done:,} of {total:,} shards)" if total else ""
    if status.online is not None and total:
        shards = f" of {total:,} partition{'' if total == 1 else 's'}"
    now = rate(status) if status.phase.over else status.training.samples_per_s
    return f"{status.samples:,} samples{shards}, {now:,.0f} samples/s"


def rate(status: JobStatus) -> float:
    training = status.training
    return (status.samples - training.samples_before) / training.trained_s if training.trained_s else 0.0


def left_out(status: JobStatus) -> list[str]:
    batches, count = status.data.left_out, status.data.samples_left_out
    if not batches:
        return []
    shown = sum(len(batch.indices) for batch in batches)
    lines = wrap(f"without {count:,} sample{'' if count == 1 else 's'} that could not be made (--poison skip):")
    lines += [line for batch in batches for line in wrap(f"  {batch}")]
    return [*lines, f"  and {count - shown:,} more; `springtide events` lists all of them"] if count > shown else lines


def measures(status: JobStatus) -> list[str]:
    training = status.training
    parts = [] if training.loss is None else [f"loss {training.loss:.4f}"]
    parts += [f"{name} {text}" for name, text in metric_cells(status)]
    if training.staleness is not None and (training.staleness or status.roles.workers.wanted > 1):
        parts.append(f"staleness {training.staleness_p50} pushes at the median, {training.staleness} at most")
    return wrap(", ".join(parts)) if parts else []


def status_object(status: JobStatus, places: Mapping[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    plain.pop("type", None)
    if status.phase.over:
        plain.setdefault("training", {})["samples_per_s"] = rate(status)
        for count in (plain.get("roles") or {}).values():
            if isinstance(count, dict):
                count["alive"] = 0  # the last status was taken before the servers ended
    return {**output.redact_all(plain), "exit_code": exit_code(status), **places}
