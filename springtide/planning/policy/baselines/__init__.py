"""Pure. Baseline policies for comparison: the user's choice, elastic scheduling, Optimus, DLRover as shipped."""
