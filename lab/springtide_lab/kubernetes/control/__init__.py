"""Controllers of the cluster: scheduler, garbage collector, namespaces."""
