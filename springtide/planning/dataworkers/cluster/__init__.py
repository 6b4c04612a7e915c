"""Pure. Data workers of many jobs: who gets which cores, on which node."""
