"""A day of a stream in five minutes, on this machine: what `springtide bench online` is made of."""
