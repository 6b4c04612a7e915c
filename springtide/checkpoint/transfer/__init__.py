"""Checkpoint files on their way: uploads, reads from other hosts, shared disks."""
