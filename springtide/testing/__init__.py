"""Tools for tests of training scripts: a real job on this machine, and random faults from a seed.

`cluster.LocalCluster` runs a script with real processes that a test can kill, stop, wake and scale. `faults.FaultPlan`
draws the faults; equal seeds give equal faults.
"""
