"""DLRover-RM: simulated clusters and figures."""
