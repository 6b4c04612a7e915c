"""Forecasts traffic with models that need optional packages: MSTL (statsforecast) and neural networks (neuralforecast).

In: a `PastTraffic` of two to four weeks. All models work on half hours; the result has the time step of the history.
A network trains twice: without the last days, to measure its error on them, then on the whole history. The two
trainings take minutes of one core and hundreds of megabytes. Next: `brain.forecasting.registry` checks the forecast.
"""

import inspect
import logging
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from springtide.planning.online.forecasters import Forecaster
from springtide.planning.online.seasonal import calibrated, coarse, coarsely, fine, interval
from springtide.planning.online.seasonal import forecast as default
from springtide.planning.online.traffic import Array, PastTraffic, RateForecast

MSTL_DAYS = 15  # two weeks of history and one day to test on
HELD_DAYS = 4  # days that the first training leaves out
NEEDS_DAYS = 14 + HELD_DAYS
PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "nhits": (
        "NHITS",
        {
            "input_days": 7,
            "max_steps": 300,
            "learning_rate": 1e-3,
            "scaler_type": "standard",
            "windows_batch_size": 64,
            "mlp_units": [[256, 256]] * 3,
        },
    ),
    "fedformer": (
        "FEDformer",
        {
            "input_days": 4,
            "max_steps": 300,
            "factor": 3,
            "learning_rate": 1e-4,
            "scaler_type": "standard",
            "encoder_layers": 2,
            "decoder_layers": 1,
            "n_head": 8,
            "modes": 64,
            "dropout": 0.05,
            "hidden_size": 128,
            "windows_batch_size": 32,
        },
    ),
}
"""Class and arguments of each network. FEDformer follows Kale: one input series, one output, attention factor 3. The
other values are those of its authors, except a smaller hidden size that a CPU can train in minutes.
"""


def forecaster(name: str) -> Forecaster:
    """Return the model of that name. Its package is imported at the first forecast."""
    return partial(calibrated, name, coarsely(_mstl), MSTL_DAYS) if name == "mstl" else partial(_forecast, name)


def _forecast(name: str, history: PastTraffic, steps: int) -> RateForecast:
    if history.days < NEEDS_DAYS:
        return default(history, steps).because(f"{name} needs {NEEDS_DAYS} days, {history.days} are known")
    past, day = history.filled().values, history.day
    halves, times, half_day = coarse(past, day)
    ahead = max(-(-steps // times), half_day)
    held = len(halves) - HELD_DAYS * half_day
    first = _Network(name, halves[:held], half_day, ahead)
    starts = [len(halves) - back * half_day for back in range(HELD_DAYS, 0, -1)]
    told = np.concatenate([fine(first.predict(halves[:start]), times)[:day] for start in starts])
    came = history.values[-HELD_DAYS * day :]
    known = ~np.isnan(came)
    low, high = interval((came / np.maximum(told, 1e-9))[known], HELD_DAYS)
    off = float(np.abs(told - came)[known].sum() / max(float(came[known].sum()), 1e-9))
    mean = fine(_Network(name, halves, half_day, ahead).predict(halves), times)[:steps]
    unknown = f"; the library has no {', '.join(first.unknown)}" if first.unknown else ""
    return RateForecast(
        step_s=history.step_s,
        mean=mean,
        low=mean * low,
        high=mean * high,
        member=name,
        tried=HELD_DAYS,
        why=f"{name}; {off:.1%} off on the last {HELD_DAYS} days{unknown}",
    )


class _Network:
    """A network that can be trained."""

    def __init__(self, name: str, past: Array, day: int, ahead: int) -> None:
        from neuralforecast import NeuralForecast, models

        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        kind, preset = PRESETS[name]
        made = getattr(models, kind)
        known = inspect.signature(made.__init__).parameters
        options = {key: value for key, value in preset.items() if key in known}
        self.unknown = tuple(key for key in preset if key not in known and key != "input_days")
        """Preset arguments that the library's class does not accept."""
        model = made(
            h=ahead,
            input_size=preset["input_days"] * day,
            random_seed=1,
            start_padding_enabled=True,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            **options,
        )
        self._network = NeuralForecast(models=[model], freq=1)
        self._kind = kind
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trainers warn about the number of loader workers
            self._network.fit(df=_frame(past))

    def predict(self, past: Array) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = self._network.predict(df=_frame(past))
        return np.maximum(np.asarray(said[self._kind], dtype=np.float64), 0.0)


def _frame(past: Array) -> Any:
    import pandas

    return pandas.DataFrame({"unique_id": "traffic", "ds": np.arange(len(past)), "y": past.astype(np.float32)})


def _mstl(past: Array, day: int, steps: int) -> Array:
    from statsforecast.models import MSTL

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsforecast warns about its own choice of trend
        said = MSTL(season_length=[day, 7 * day]).forecast(y=past, h=steps)
    mean: Array = said["mean"]
    return mean
