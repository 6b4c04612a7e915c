"""From a spec as written to one that can run."""
