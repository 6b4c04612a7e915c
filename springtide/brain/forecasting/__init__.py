"""Forecasts traffic with models that need more than NumPy, each in its own process.

Path of a forecast: `forecast_client` (in the master) -> `forecast_process` -> `registry` (model by name) -> `mstl`,
`neural` or a model of `planning.online.forecasters`. The client always returns a forecast, even if the process
fails.
"""
