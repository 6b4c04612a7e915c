"""Forecasts traffic with models that need more than NumPy, each in its own process.

Path: `forecast_client` (in the master) -> `forecast_process` -> `registry` (model by name).
"""
