"""A Ray cluster: connection, nodes, records of jobs."""
