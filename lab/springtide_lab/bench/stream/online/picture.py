"""A day of an online job as a picture: traffic and forecast above, workers, and lag below."""

import pathlib
from collections.abc import Sequence

from springtide.domain.spec.online_job import OnlinePoint


def draw(points: Sequence[OnlinePoint], path: pathlib.Path, *, lasts_s: float, slo_s: float) -> None:
    """Three charts over the hours of the day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    began = points[0].at if points else 0.0
    hours = [(one.at - began) * 24 / lasts_s for one in points]
    figure, (traffic, workers, lag) = pyplot.subplots(
        3, 1, sharex=True, figsize=(8, 7), layout="constrained", height_ratios=(2, 1, 1)
    )
    known = [(hour, one) for hour, one in zip(hours, points, strict=True) if one.forecast is not None]
    traffic.plot(hours, [one.arriving for one in points], label="came", color="tab:blue")
    traffic.plot(hours, [one.trained for one in points], label="trained", color="tab:green", linewidth=1)
    traffic.plot(
        [hour for hour, _ in known], [one.forecast for _, one in known], label="forecast", color="tab:orange",
        linestyle="--",
    )  # fmt: skip
    traffic.fill_between(
        [hour for hour, _ in known], [one.forecast for _, one in known], [one.high for _, one in known],
        color="tab:orange", alpha=0.15, linewidth=0,
    )  # fmt: skip
    able = [(hour, one.capacity) for hour, one in zip(hours, points, strict=True) if one.capacity is not None]
    traffic.step(*zip(*able, strict=True), where="post", label="workers could train", color="0.5", linestyle=":")
    traffic.set_ylabel("records a second")
    traffic.legend(loc="upper left", frameon=False)
    workers.step(
        hours, [one.wanted for one in points], where="post", label="wanted", color="tab:orange", linestyle="--"
    )
    workers.step(hours, [one.workers for one in points], where="post", label="there", color="tab:green")
    workers.set_ylabel("workers")
    workers.legend(loc="upper left", frameon=False)
    lag.plot(hours, [one.lag_s / 60 for one in points], color="tab:red")
    lag.axhline(slo_s / 60, color="tab:red", linestyle="--", linewidth=1)
    lag.set_ylabel("lag, minutes")
    lag.set_xlabel("hours of the day")
    for chart in (traffic, workers, lag):
        chart.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
