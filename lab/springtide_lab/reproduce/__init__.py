"""Tables and figures of the five papers, computed by this code."""
