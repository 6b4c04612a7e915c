"""Pure. Forecasts of traffic."""
