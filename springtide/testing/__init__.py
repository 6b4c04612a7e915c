"""For tests of training scripts: a real job on this machine, and faults drawn from a seed.

`cluster.LocalCluster` runs a script with real processes and lets a test kill, stop, wake and scale them;
`faults.FaultPlan` decides what happens next, the same for the same seed.
"""
