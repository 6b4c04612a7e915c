"""Pure. Input and output of the autoscaler of an online job.

In: measurements and a forecast, collected by the master or the simulator. This module decides nothing. Next:
planning/online/scaling/decision.py turns an `OnlineView` into a `Scaling`.
"""

from dataclasses import dataclass, fields

from springtide import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOutlook:
    """Forecast of the traffic from now on, in equal time steps."""

    step_s: float
    mean: tuple[float, ...]
    """Mean traffic of each step, in samples per second."""
    high: tuple[float, ...]
    """90th percentile of each step."""
    why: str = ""
    """Basis of the forecast."""

    def __post_init__(self) -> None:
        if self.step_s <= 0 or not self.mean or len(self.mean) != len(self.high):
            raise errors.BadInput(
                f"an outlook of {len(self.mean)} means and {len(self.high)} highs by {self.step_s:g} s: "
                "wanted as many of both, one or more, by steps above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineView:
    """State of an online job at one moment."""

    at: float
    """Seconds of a monotonic clock."""
    workers: int
    """Current workers, or the target of a change in progress."""
    backlog: float
    """Samples that have arrived and are not trained."""
    lag_s: float
    """Waiting time of the oldest untrained sample."""
    arrivals: float
    """Samples per second that arrived in the last minutes."""
    utilization: float
    """Share of the last minutes in which workers had samples to train."""
    outlook: TrafficOutlook
    capacity: tuple[float, ...]
    """Samples per second by number of workers, measured or from the fitted curve. `capacity[w]` is for w workers, from
    w = 0."""
    pausing: bool = False
    """True while a change is in progress. No new change begins."""
    changed_at: float = float("-inf")
    """Time of the last change of the number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRules:
    """Targets and limits of the autoscaler of an online job."""

    fewest: int = 1
    """Minimum number of workers."""
    most: int = 32
    """Maximum number of workers."""
    slo_lag_s: float = 1200.0
    """Longest waiting time of a sample within the SLO: 20 minutes, as in the paper."""
    pause_s: float = 0.0
    """Seconds without training when the number of workers changes; 0 means live scaling."""
    start_s: float = 60.0
    """Seconds until a new worker trains, while the other workers continue."""
    period_s: float = 600.0
    """Seconds between two plans. Unexpected lag triggers a plan earlier."""
    horizon_s: float = 28_800.0
    """Planning horizon: 8 hours. A longer outlook no longer changes the next step."""
    lag_price: float = 1.5
    """Cost of a lag of `slo_lag_s` while it lasts, as a multiple of the mean number of needed workers. It applies to a
    day whose mean is half its peak. Lag costs more where scaling can save less (`decision.lag_worth`)."""
    late_price: float = 6.0
    """Additional cost of a lag above `slo_lag_s`, in the same unit."""
    change_price: float = 0.1
    """Cost of a change besides its pause, in hours of the mean number of needed workers."""

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise errors.BadInput(f"online workers from {self.fewest} to {self.most}: wanted 1 <= fewest <= most")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith(("_s", "_price")) and not 0 <= value < float("inf"):
                raise errors.BadInput(f"online rule {each.name}={value}: wanted a number of 0 or more")
        if self.slo_lag_s == 0:
            raise errors.BadInput("online rule slo_lag_s=0: wanted the seconds that a sample may wait, more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Number of workers that the job should have now, with the reason. It can equal the current number."""

    workers: int
    why: str
    plan: tuple[int, ...] = ()
    """Planned workers of each step, up to the planning horizon."""
    alert: str = ""
    """Message for operators, such as that no number of workers keeps up."""
