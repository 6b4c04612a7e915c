"""Pure. Roles, resources, shapes, durations."""
