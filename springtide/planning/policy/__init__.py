"""Pure. Policies by name: Springtide's own policy, the user's own request, and plug-ins."""
