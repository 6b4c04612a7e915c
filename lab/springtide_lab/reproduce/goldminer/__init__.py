"""GoldMiner: a cluster of 64 GPUs in virtual time, with jobs that want more cores a GPU than there are."""
