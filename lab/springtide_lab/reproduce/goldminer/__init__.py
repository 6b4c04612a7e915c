"""GoldMiner's cluster of 64 GPUs in virtual time: jobs that want more cores a GPU than there are.

    models (cores a GPU) -> trace (jobs) -> cluster (machines, FIFO) -> fixed | elastic (cores) -> running -> rows

What decides in `elastic` is `springtide.planning.dataworkers`, the same code that would plan a real cluster's.
"""
