"""Pure. How a job grows and shrinks. Decision walk: after master/autoscale."""
