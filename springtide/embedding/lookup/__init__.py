"""Ids to rows and gradients back. Sample walk: between worker/step and the native client."""
