"""Pure. Number of workers of an online job."""
