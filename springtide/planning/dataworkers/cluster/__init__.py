"""Pure. Data workers of many jobs: allocation of cores, and placement on nodes."""
