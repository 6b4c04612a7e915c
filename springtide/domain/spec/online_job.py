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
    """True if the number of workers follows the stream's traffic."""
    rules: OnlineRules = field(default_factory=OnlineRules)
    speedup: float = 1.0
    """Seconds of stream time per second of the clock."""
    every_s: float = 15.0
    """Seconds of stream time between two decisions."""
    forecaster: str = "default"
    servers_follow: bool = False
    """True if servers keep their initial ratio to workers."""
    history: str = ""
    """File with earlier traffic: `traffic.jsonl` of another run."""
    metrics_port: int | None = None
    """Port for Prometheus metrics; 0 means any free port, None means no metrics."""

    def __post_init__(self) -> None:
        if not self.speedup > 0 or not self.every_s > 0:
            raise errors.BadInput(f"online: speedup {self.speedup:g}, every {self.every_s:g} s; wanted numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStep:
    """Traffic of one time step, stored for forecasts."""

    at: float
    """Start of the step, as Unix time in seconds."""
    seconds: float
    """Clock seconds during which traffic was counted in the step."""
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePoint:
    """State of an online job at one moment, for the dashboard and plots. Rates are samples per second of the clock."""

    at: float
    """Unix time in seconds."""
    arriving: float
    trained: float
    lag_s: float
    backlog: float
    workers: int
    wanted: int
    forecast: float | None = None
    """Traffic that the last forecast expected for now."""
    high: float | None = None
    capacity: float | None = None
    """Samples per second that the current workers can train."""
    down: bool = False
    """True if training was paused for scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineState:
    """Status of an online job for people and monitors. Rates are samples per second of the clock. Lags are seconds of
    stream time, which equal clock seconds unless `speedup` is set."""

    lag_s: float
    """Waiting time of the oldest untrained sample."""
    slo_lag_s: float
    backlog: int
    arriving: float
    trained: float
    utilization: float | None = None
    """Share of time in which workers had samples to train; None if not measured yet."""
    capacity: float | None = None
    """Samples per second that the current workers could train; None if not measured yet."""
    forecast: float | None = None
    """Expected traffic of the next minutes. `high` is its 90th percentile and `forecast_why` its basis."""
    high: float | None = None
    forecast_why: str = ""
    forecast_trouble: str = ""
    fewest: int = 1
    most: int = 1
    backups: int = 0
    """Additional workers that compensate for slow workers."""
    why: str = ""
    """Reason for the current number of workers."""
    alert: str = ""
    scalings: int = 0
    """Number of scalings due to traffic."""
    hours: float = 0.0
    """Hours of stream time that the figures below cover."""
    violation: float = 0.0
    """Share of time with a lag above the SLO."""
    lag_min: float = 0.0
    """Accumulated lag: the sum over all minutes of the lag in minutes."""
    down_min: float = 0.0
    worker_hours: float = 0.0
    records: int = 0
    late: int = 0
    corrupt: int = 0
    oversized: int = 0
    unkept: int = 0
    """Dead letters that could not be stored. `unkept_why` is the reason from the first worker that dropped a dead
    letter."""
    unkept_why: str = ""
    expired: int = 0
    forwarded: int = 0
    lag_p50_s: float = 0.0
    """Recent time from append to training, of the worker with the largest value."""
    lag_p99_s: float = 0.0
