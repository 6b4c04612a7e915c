"""Pure. Rules for the loss of a worker or a server."""
