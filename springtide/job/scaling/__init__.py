"""Pure. Rules for growing and shrinking a job. Read master/autoscale first."""
