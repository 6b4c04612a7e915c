"""A generated click log whose best AUC is known."""
