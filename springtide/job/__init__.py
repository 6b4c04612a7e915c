"""Pure. State machine of a job: events in, actions out, every change with its reason. `master` drives it."""
