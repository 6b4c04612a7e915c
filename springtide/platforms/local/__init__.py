"""Roles as processes of this machine: limits, fork server, watchdog."""
