"""Pure. Policies by name: Springtide's own policy, baselines and plug-ins."""
