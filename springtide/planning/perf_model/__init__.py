"""Pure. Step time as a function of resources, fitted to measurements. Decision walk: after
master/autoscale/profiler."""
