"""Pure. The nouns of a job: frozen values, no I/O, no clock, no torch. Everything above may import these."""
