"""Start and supervise data worker processes, and package the user's code for them."""
