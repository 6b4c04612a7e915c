"""Pure. State machine of a job: it takes events and returns actions, and gives a reason for every change. `master`
calls it."""
