"""Pure. Data workers: how many a job should have, how large, whether at all; and which job gets the next one."""
