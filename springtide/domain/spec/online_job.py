"""Pure. Settings and status of autoscaling for a job that reads a stream.

In: the command line or a test, through `domain.spec.job_spec.JobSpec`. Next: `master.autoscale.online_loop` applies
them. Stream time may run faster than the clock (`speedup`), so a test can replay a day in minutes. Lags, steps and SLOs
are in stream time.
"""

from dataclasses import dataclass, field

from springtide import errors
from springtide.domain.data.online_view import OnlineRules


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineJob:
    """Autoscaling settings of one job. They have no effect on a job that reads no stream."""

    on: bool = False
    """Whether workers follow the stream's traffic."""
    rules: OnlineRules = field(default_factory=OnlineRules)
    speedup: float = 1.0
    """Seconds of the stream that pass in a second."""
    every_s: float = 15.0
    """Between two decisions, in the stream's time."""
    forecaster: str = "default"
    servers_follow: bool = False
    """Whether servers keep the ratio to workers that the job began with."""
    history: str = ""
    """File of traffic that is known from before: `traffic.jsonl` of another run."""
    metrics_port: int | None = None
    """Where figures are served for Prometheus; 0: any free port, None: nowhere."""

    def __post_init__(self) -> None:
        if not self.speedup > 0 or not self.every_s > 0:
            raise errors.BadInput(f"online: speedup {self.speedup:g}, every {self.every_s:g} s; wanted numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStep:
    """Traffic of one time step, stored for forecasts."""

    at: float
    """Time of day in seconds at which it began."""
    seconds: float
    """Of the clock: how long it was looked at."""
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePoint:
    """State of an online job at one moment, for the dashboard and plots. Rates are samples per second of the clock."""

    at: float
    """Time of day in seconds."""
    arriving: float
    trained: float
    lag_s: float
    backlog: float
    workers: int
    wanted: int
    forecast: float | None = None
    """What was expected to come now, when it was last forecast."""
    high: float | None = None
    capacity: float | None = None
    """What so many workers can train."""
    down: bool = False
    """Nothing was trained, because the job was being scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineState:
    """Status of an online job for people and monitors. Rates are samples per second of the clock. Lags are seconds of
    stream time, which equal clock seconds unless `speedup` is set."""

    lag_s: float
    """How long the oldest sample that is not trained has waited."""
    slo_lag_s: float
    backlog: int
    arriving: float
    trained: float
    utilization: float | None = None
    """Part of the time in which workers had something to train; None: not measured yet."""
    capacity: float | None = None
    """What the workers that there are could train; None: not measured yet."""
    forecast: float | None = None
    """What is expected to come in the next minutes; what nine of ten values lie below; and what that stands on."""
    high: float | None = None
    forecast_why: str = ""
    forecast_trouble: str = ""
    fewest: int = 1
    most: int = 1
    backups: int = 0
    """Workers beside those that traffic asks for, because others are slow."""
    why: str = ""
    """The last word on how many workers there are."""
    alert: str = ""
    scalings: int = 0
    """How often the number of workers was changed for the traffic."""
    hours: float = 0.0
    """That the figures below are of, in the stream's time."""
    violation: float = 0.0
    """Share of the time with a lag above what is promised."""
    lag_min: float = 0.0
    """Accumulated lag: minutes of lag, minute by minute."""
    down_min: float = 0.0
    worker_hours: float = 0.0
    records: int = 0
    late: int = 0
    corrupt: int = 0
    oversized: int = 0
    unkept: int = 0
    """Of these, dead letters that could not be kept; and why, as the first worker told that had to drop one."""
    unkept_why: str = ""
    expired: int = 0
    forwarded: int = 0
    lag_p50_s: float = 0.0
    """From append to trained, of late, of the worker where it is largest."""
    lag_p99_s: float = 0.0
