"""Generated click log with a known best AUC."""
