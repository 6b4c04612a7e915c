"""Pure. What follows the loss of a worker or a server."""
