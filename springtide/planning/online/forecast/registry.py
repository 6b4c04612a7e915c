"""Pure. Looks up forecasters by name: the default, simple baselines, and plug-ins.

In: a name. Out: a function `(PastTraffic, steps) -> RateForecast` whose results are validated. Next: backtest.py tests
them on the past; brain/forecasting/ has forecasters that need extras, and runs them in a separate process.

A package registers its forecaster in pyproject.toml, like a policy (docs/design/policies.md). A name can also be
`module:function`.

    [project.entry-points."springtide.forecasters"]
    ours = "my_package:forecast"
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from springtide import errors
from springtide.planning.online.forecast.seasonal import calibrated, forecast
from springtide.planning.online.forecast.simple_forecasts import last_day, last_week
from springtide.planning.online.forecast.traffic import PastTraffic, RateForecast
from springtide.planning.policy import registry

Forecaster = Callable[[PastTraffic, int], RateForecast]
GROUP = "springtide.forecasters"
KIND = "forecaster"
BUILT_IN: dict[str, Forecaster] = {
    "default": forecast,
    "last-day": partial(calibrated, "last-day", last_day, 1),
    "last-week": partial(calibrated, "last-week", last_week, 7),
}
"""Built-in forecasters. They need only NumPy, and milliseconds."""


def names() -> tuple[str, ...]:
    return tuple(sorted({*BUILT_IN, *registry.offered(GROUP)}))


def load(name: str) -> Forecaster:
    """Return the forecaster with this name: built in, from an installed package, or `module:function`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return partial(_checked, name, registry.by_dotted_name(name, KIND))
    offered = registry.by_entry_point(name, GROUP, KIND)
    if offered is None:
        raise errors.UnknownName(KIND, name, names())
    return partial(_checked, name, offered)


def _checked(name: str, theirs: registry.Plugin, history: PastTraffic, steps: int) -> RateForecast:
    return sound(name, theirs(history, steps), history, steps)


def sound(name: str, said: object, history: PastTraffic, steps: int) -> RateForecast:
    """Validate a forecast: the requested number of finite values. Clip it to values >= 0 and low <= mean <= high."""
    if not isinstance(said, RateForecast):
        raise errors.BadInput(f"forecaster {name!r} gave a {type(said).__name__}; wanted a Forecast")
    if abs(said.step_s - history.step_s) > 1e-9:
        raise errors.BadInput(f"forecaster {name!r} answers by {said.step_s:g} s; wanted {history.step_s:g} s")
    parts = {}
    for part in ("mean", "low", "high"):
        values = np.asarray(getattr(said, part), dtype=np.float64)
        if values.shape != (steps,) or not np.isfinite(values).all():
            wrong = f"shape {values.shape}" if values.shape != (steps,) else "numbers that are not finite"
            raise errors.BadInput(f"forecaster {name!r} gave {part} of {wrong}; wanted {steps} numbers")
        parts[part] = np.maximum(values, 0.0)
    mean = parts["mean"]
    return replace(said, mean=mean, low=np.minimum(parts["low"], mean), high=np.maximum(parts["high"], mean))
