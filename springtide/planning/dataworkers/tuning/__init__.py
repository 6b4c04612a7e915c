"""Pure. Data workers of one job: whether, how many, how large."""
