"""Pure. Policies by name: Springtide's own, baselines and plugins."""
