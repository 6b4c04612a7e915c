"""Scripts that run in the peers' environment, without springtide: torch and the standard library only."""
