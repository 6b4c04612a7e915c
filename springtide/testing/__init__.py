"""Tools for tests of training scripts: `cluster.LocalCluster` runs a script as a real job on this machine."""
