"""Access to a Ray cluster: connection, nodes, records of jobs."""
