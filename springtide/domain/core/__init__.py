"""Pure. Roles, resources, shapes and durations of a job."""
