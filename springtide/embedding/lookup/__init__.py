"""Looks up rows by id and returns their gradients. On the path of a sample, this package lies between worker/step and
the native client."""
