"""Data workers: the stateless part of a user's program, split off and run by processes of its own."""
