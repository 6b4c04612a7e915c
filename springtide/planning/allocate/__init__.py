"""Pure. Divides cluster capacity among jobs: bids, options, knapsack."""
