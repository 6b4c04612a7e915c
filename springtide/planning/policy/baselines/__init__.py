"""Pure. How others size jobs, for comparison: the user, elastic scheduling, Optimus, DLRover as it is shipped."""
