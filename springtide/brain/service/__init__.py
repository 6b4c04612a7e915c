"""The brain as a service: server, client, executor processes, failover."""
