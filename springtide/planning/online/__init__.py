"""Pure. Planning for jobs whose data never ends: forecasts of traffic, the capacity of workers, and the number of
workers."""
