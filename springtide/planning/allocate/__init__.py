"""Pure. Shares capacity between jobs: bids, options, knapsack."""
