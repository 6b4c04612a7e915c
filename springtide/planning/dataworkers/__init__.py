"""Pure. Data workers: whether a job needs them, how many, what size, and which job gets the next cores."""
