"""Forecasts of traffic by models that need more than NumPy, each in a process of its own.

A forecast: `asking` (in the master) -> `answering` (the process) -> `models` (by name) -> `mstl`, `neural`, or what
`planning.online.forecast.registry` knows -> back. Whatever becomes of the process, `asking` has an answer.
"""
