"""Pure. Data workers of one job: whether to use them, how many, and what size."""
