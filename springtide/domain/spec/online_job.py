"""Pure. Settings and status of autoscaling for a job that reads a stream.

Stream time may run faster than the clock (`speedup`), so a test can replay a day in minutes. Lags, steps and SLOs are
in stream time.
"""

from dataclasses import dataclass, field, fields

import msgspec

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.data.streams import StreamCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOutlook:
    """Forecast of the traffic from now on, in equal time steps."""

    step_s: float
    mean: tuple[float, ...]
    """Mean traffic in each time step, in samples per second."""
    high: tuple[float, ...]
    """90th percentile of the traffic in each time step, in samples per second."""
    why: str = ""

    def __post_init__(self) -> None:
        if self.step_s <= 0 or not self.mean or len(self.mean) != len(self.high):
            raise errors.BadInput(
                f"an outlook of {len(self.mean)} means and {len(self.high)} highs by {self.step_s:g} s: expected "
                f"equal numbers of both, at least one, and a step above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineView:
    """State of an online job at one moment."""

    at: float
    """Time of the state, in seconds of a monotonic clock."""
    workers: int
    """Number of workers at present; during a change, its target."""
    backlog: float
    """Number of samples that have arrived and are not trained."""
    lag_s: float
    """Waiting time of the oldest untrained sample."""
    arrivals: float
    """Samples per second that arrived in the last minutes."""
    utilization: float
    """Share of the last minutes in which workers had samples to train."""
    outlook: TrafficOutlook
    capacity: tuple[float, ...]
    """Samples per second by number of workers: `capacity[w]` is for w workers, from w = 0."""
    pausing: bool = False
    """True while a change is in progress. No new change begins meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRules:
    """Targets and limits of the autoscaler of an online job."""

    fewest: int = 1
    most: int = 32
    slo_lag_s: float = 1200.0
    """Longest waiting time of a sample within the SLO: 20 minutes, as in the paper."""
    pause_s: float = 0.0
    """Seconds for which training stops when the number of workers changes; 0 means that training continues (live
    scaling)."""
    start_s: float = 60.0
    """Seconds until a new worker trains. The other workers continue meanwhile."""
    period_s: float = 600.0
    """Seconds between two plans. Unexpected lag triggers a plan earlier."""
    horizon_s: float = 28_800.0
    """Planning horizon: 8 hours. A longer horizon would not change the next step."""
    lag_price: float = 1.5
    """Cost of a lag of `slo_lag_s` for as long as the lag lasts, as a multiple of the cost of the mean number of needed
    workers. The value is for a day with a mean traffic of half its peak. On days on which scaling can save less than
    that, lag costs more (`decision.lag_worth`)."""
    late_price: float = 6.0
    """Additional cost of a lag that exceeds `slo_lag_s`, in the same unit."""
    change_price: float = 0.1
    """Cost of a change, not counting its pause, in hours of the mean number of needed workers."""

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise errors.BadInput(f"online workers from {self.fewest} to {self.most}: expected 1 <= fewest <= most")
        numbers = (field.name for field in fields(self) if field.name.endswith(("_s", "_price")))
        validation.check_range(self, *numbers, least=0, of="online rule ")
        validation.check_range(self, "slo_lag_s", above=0, unit="seconds", of="online rule ")


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Number of workers that the job should have now, with the reason. The number may equal the current one."""

    workers: int
    why: str
    plan: tuple[int, ...] = ()
    """Planned number of workers in each time step, up to the planning horizon."""
    alert: str = ""
    """Message for operators, for example that no number of workers can keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineJob:
    """Autoscaling settings of one job. The settings have no effect on a job without a stream."""

    on: bool = False
    """True if the number of workers follows the stream's traffic."""
    rules: OnlineRules = field(default_factory=OnlineRules)
    speedup: float = 1.0
    """Seconds of stream time per second of the clock."""
    every_s: float = 15.0
    """Seconds of stream time between two decisions."""
    forecaster: str = "default"
    servers_follow: bool = False
    """True if the ratio of servers to workers stays as it was at the start."""
    history: str = ""
    """File with earlier traffic: `traffic.jsonl` of another run."""
    metrics_port: int | None = None
    """Port for Prometheus metrics; 0 means any free port, None means no metrics."""

    def __post_init__(self) -> None:
        validation.check_range(self, "speedup", "every_s", above=0, of="online: ")


class TrafficStep(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of one time step, stored for forecasts."""

    at: float
    """Start of the step, as Unix time in seconds."""
    seconds: float
    """Number of clock seconds, within this step, in which traffic was counted."""
    samples: float


class OnlinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """State of an online job at one moment, for the dashboard and plots. Rates are samples per second of the clock."""

    at: float
    arriving: float
    trained: float
    lag_s: float
    backlog: float
    workers: int
    wanted: int
    forecast: float | None = None
    """Traffic that the last forecast predicted for this moment."""
    high: float | None = None
    capacity: float | None = None
    """Samples per second that the current workers can train."""
    down: bool = False
    """True if training was paused for scaling."""


class ForecastStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Expected traffic of the next minutes, in samples per second of the clock."""

    mean: float | None = None
    high: float | None = None
    """90th percentile of the expected traffic."""
    why: str = ""
    """Data that the forecast is based on."""
    trouble: str = ""


class ScalingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the number of workers, and the changes made so far."""

    fewest: int = 1
    most: int = 1
    changes: int = 0
    """Number of times that the traffic changed the number of workers."""


class OnlineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Lag and cost of the job so far."""

    hours: float = 0.0
    """Hours of stream time that the other fields cover."""
    violation: float = 0.0
    """Share of the time with a lag above the SLO."""
    lag_min: float = 0.0
    """Accumulated lag: the sum over all minutes of the lag in minutes."""
    down_min: float = 0.0
    worker_hours: float = 0.0


class OnlineState(msgspec.Struct, frozen=True, kw_only=True):
    """Status of an online job for people and monitors. Rates are samples per second of the clock. Lags are seconds of
    stream time, which equal clock seconds unless `speedup` is set."""

    lag_s: float
    slo_lag_s: float
    lag_p50_s: float = 0.0
    """Recent delay from append to training, of the worker with the longest delay."""
    lag_p99_s: float = 0.0
    backlog: int
    arriving: float
    trained: float
    utilization: float | None = None
    """Share of time in which workers had samples to train; None before the first measurement."""
    capacity: float | None = None
    """Samples per second that the current workers could train; None before the first measurement."""
    why: str = ""
    """Reason for the current number of workers."""
    alert: str = ""
    expected: ForecastStatus = msgspec.field(default_factory=ForecastStatus)
    scaling: ScalingStatus = msgspec.field(default_factory=ScalingStatus)
    totals: OnlineTotals = msgspec.field(default_factory=OnlineTotals)
    stream: StreamCounts = msgspec.field(default_factory=StreamCounts)
