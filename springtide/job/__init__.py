"""Pure. How a job reacts: events in, actions out, every change with its reason. `master` feeds and obeys it."""
