"""Pure. Models the step time of a job as a function of its resources, fitted to measurements. On the path of a
decision, this package comes after master/autoscale/profiler."""
