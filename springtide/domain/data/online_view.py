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
    """Samples a second, of each step."""
    high: tuple[float, ...]
    """What nine of ten values lie below."""
    why: str = ""
    """What the forecast stands on."""

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
    """Seconds, by any clock that goes forward."""
    workers: int
    """That the job has, or is to have once a change that is under way is done."""
    backlog: float
    """Samples that have come and are not trained."""
    lag_s: float
    """How long the oldest of them has waited."""
    arrivals: float
    """Samples a second that came in the last minutes."""
    utilization: float
    """Part of the last minutes in which workers had something to train."""
    outlook: TrafficOutlook
    capacity: tuple[float, ...]
    """Samples a second by number of workers, from none on: `capacity[w]`; as measured, or by the fitted curve."""
    pausing: bool = False
    """A change is under way: nothing new is begun."""
    changed_at: float = float("-inf")
    """When the number of workers was last changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRules:
    """Targets and limits of the autoscaler of an online job."""

    fewest: int = 1
    """Workers; never less."""
    most: int = 32
    """Workers; never more."""
    slo_lag_s: float = 1200.0
    """A sample that waits longer breaks the promise: 20 minutes, as in the paper."""
    pause_s: float = 0.0
    """Seconds in which nothing is trained when the number of workers changes; 0: live scaling."""
    start_s: float = 60.0
    """Seconds until a new worker trains, while the others go on."""
    period_s: float = 600.0
    """Seconds between two plans; sooner when lag says that the last one was wrong."""
    horizon_s: float = 28_800.0
    """How far a plan looks ahead: 8 hours, beyond which the outlook changes the next step no more."""
    lag_price: float = 1.5
    """What a lag as long as `slo_lag_s` costs while it lasts, in times the workers that are needed on average; on a day
    whose mean is half its peak. Where scaling can spare less it is dearer (`deciding.lag_worth`)."""
    late_price: float = 6.0
    """What being later than that costs besides, in the same unit."""
    change_price: float = 0.1
    """What a change costs besides its pause, in hours of as many workers."""

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
    """Workers of each step of the outlook, as far as it was planned."""
    alert: str = ""
    """What somebody should know, such as that no number of workers keeps up."""
