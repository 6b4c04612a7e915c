"""The only lab folder on the import path of processes in the peers' environment."""
