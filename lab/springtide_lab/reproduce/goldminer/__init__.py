"""Reproduce GoldMiner: a cluster of 64 GPUs in virtual time, with jobs that need more cores per GPU than it has."""
