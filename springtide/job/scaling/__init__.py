"""Pure. Rules by which a job grows and shrinks. Reading order: after master/autoscale."""
