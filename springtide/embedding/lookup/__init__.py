"""Look up rows by id and return their gradients. Sample walk: between worker/step and the native client."""
