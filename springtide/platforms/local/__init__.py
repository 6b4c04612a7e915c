"""Runs roles as processes of this machine: limits, fork server, watchdog."""
