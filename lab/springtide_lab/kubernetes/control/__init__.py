"""Controllers: scheduler, garbage collector, namespaces."""
