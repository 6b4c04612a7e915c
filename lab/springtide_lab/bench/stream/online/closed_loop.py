"""A day of traffic in five minutes: a real job on a log follows it with its workers, by forecast and measurement.

In: seven generated days as history, an eighth to be played; workers held to a part of a core by control groups. Out:
the figures of Kale's section 4.1, in the day's own time, a picture of traffic, forecast, workers and lag, and whether
every record was trained exactly once. Beside it: as many workers all day as the peak needs (`Adequate` in the paper).
"""

import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from springtide import errors
from springtide.domain.data.online_view import OnlineRules
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import OnlineJob, OnlinePoint, OnlineState, TrafficStep
from springtide.planning.online.forecast.traffic import DAY_S
from springtide.platforms.local import cgroups
from springtide.rpc.messages.messages import JobStatus
from springtide.telemetry.time_series import read
from springtide_lab.bench import Options
from springtide_lab.bench.core import progress, report
from springtide_lab.bench.stream.online import day, online_job, picture

DAY_LASTS_S, QUICK_S = 300.0, 40.0
BEFORE = 7
SEED = 8
CPU, MOST = 0.15, 4
PEAK = 3.2
"""Times what one worker trains: four keep up with it, three do not."""
WORK = 60
VIOLATION, DOWN_MIN, OF_ADEQUATE = 0.026, 1.0, 0.85


def bench(options: Options) -> report.Result:
    """Measure one worker, then play the day."""
    if why := cgroups.why_not():
        raise errors.BadInput(f"this benchmark needs CPU quotas: {why}")
    lasts_s = QUICK_S if options.quick else DAY_LASTS_S
    with tempfile.TemporaryDirectory(prefix="springtide-online-") as name:
        folder = pathlib.Path(name)
        pace = one_worker(folder / "one")
        progress.say(f"one worker of {CPU:g} cores trains {pace:,.0f} records a second; the day begins")
        status, points, wrong = play(folder / "day", peak=PEAK * pace, lasts_s=lasts_s)
    assert status.online is not None
    drawn = options.folder / "online.png"
    picture.draw(points, drawn, lasts_s=lasts_s, slo_s=status.online.slo_lag_s)
    return told(status.online, points, wrong, pace, str(drawn), lasts_s)


def told(
    state: OnlineState, points: Sequence[OnlinePoint], wrong: int, pace: float, drawn: str, lasts_s: float
) -> report.Result:
    """The figures."""
    adequate = MOST * state.hours
    off = [abs(one.forecast - one.arriving) for one in points if one.forecast is not None]
    came = [one.arriving for one in points if one.forecast is not None]
    return report.Result(
        goals=(
            report.goal("online_violation", state.violation, target=VIOLATION, better="lower"),
            report.goal("online_downtime_min", state.down_min, target=DOWN_MIN, better="lower"),
            report.goal(
                "online_worker_hours_vs_adequate", state.worker_hours / adequate, target=OF_ADEQUATE, better="lower"
            ),
            report.goal("online_lost_or_repeated", float(wrong), target=0.0, better="lower"),
        ),
        rounds=1,
        columns=("scheme", "violation", "lag min", "down min", "worker-h", "changes"),
        rows=(
            (
                "this job", f"{state.violation:.2%}", state.lag_min, state.down_min, state.worker_hours,
                float(state.scalings),
            ),
            (f"{MOST} workers all day (reckoned)", None, None, 0.0, adequate, 0.0),
        ),
        notes=(
            f"a day in {lasts_s:g} s: every second is {DAY_S / lasts_s / 60:.1f} min, so the promise "
            f"of {state.slo_lag_s / 60:g} min is kept within {state.slo_lag_s * lasts_s / DAY_S:.1f} s of the clock",
            f"one worker of {CPU:g} cores trains {pace:,.0f}/s; {state.records:,} records came, peak "
            f"{max((one.arriving for one in points), default=0.0):,.0f}/s; the forecast for now was "
            f"{sum(off) / max(sum(came), 1e-9):.1%} off",
            f"picture: {drawn}",
        ),
        details={
            "points": [msgspec.to_builtins(one) for one in points], "online": msgspec.to_builtins(state),
            "pace": pace, "lasts_s": lasts_s,
        },
    )  # fmt: skip


def one_worker(folder: pathlib.Path, *, records: int = 40_000, seconds: float = 8.0) -> float:
    """Records a second that one worker trains when it never waits."""
    folder.mkdir()
    producer = online_job.Producer(folder, lambda _: records / online_job.EVERY_S / 4)
    producer.start()
    time.sleep(5 * online_job.EVERY_S)
    with online_job.job_of(folder, producer, OnlineJob(), work=WORK, name="one") as job, online_job.Held(job, CPU):
        job.until(lambda status: status.samples > 20 * online_job.BATCH)
        first, began = job.status, time.monotonic()
        while time.monotonic() < began + seconds and job.status.samples < records * 0.9:
            time.sleep(0.1)
        last, gone = job.status, time.monotonic() - began
    producer.seal()
    return (last.samples - first.samples) / gone


def play(
    folder: pathlib.Path, *, peak: float, lasts_s: float, cpu: float = CPU, most: int = MOST, work: int = WORK,
    say: Callable[[str], None] = progress.say,
) -> tuple[JobStatus, list[OnlinePoint], int]:  # fmt: skip
    """One day to a job; how it was at the day's end, its points, and records that were lost or trained twice."""
    folder.mkdir()
    days = day.days(BEFORE + 1, seed=SEED)
    midnight = time.time()
    producer = online_job.Producer(folder, lambda wall: peak * days.at((wall - midnight) / lasts_s))
    history = folder / "before.jsonl"
    history.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in past(days, peak, midnight, lasts_s)))
    online = OnlineJob(
        on=True, rules=OnlineRules(most=most), speedup=DAY_S / lasts_s, every_s=120.0, history=str(history)
    )  # fmt: skip
    with online_job.job_of(folder, producer, online, work=work) as job, online_job.Held(job, cpu):
        job.until(lambda status: status.online is not None)
        producer.start()
        began, said = time.time(), ""
        status = job.status
        while time.time() < midnight + lasts_s or time.time() < began + 0.8 * lasts_s:
            status = job.status
            if status.decision_why != said and status.online is not None:
                said = status.decision_why
                say(f"{time.time() - midnight:5.0f} s  {status.workers_wanted} workers: {said}")
            assert not job.over, f"the job has ended: {status.why}"
            time.sleep(0.1)
        producer.seal()
        ended = job.wait(within_s=120)
        points = read(job.files.online, OnlinePoint)
    if ended.phase is not JobPhase.FINISHED:
        raise errors.JobFailed(f"the job of the benchmark ended as {ended.phase}: {ended.why}")
    return status, points, online_job.miscounted(folder, producer.appended)


def past(days: day.Days, peak: float, midnight: float, lasts_s: float) -> list[TrafficStep]:
    """The days before, as an earlier run would have kept them."""
    step_s = lasts_s / 144
    return [
        TrafficStep(
            at=midnight - step_s * back, seconds=step_s, samples=step_s * peak * days.at((0.5 - back) / 144)
        )
        for back in range(BEFORE * 144, 0, -1)
    ]  # fmt: skip
