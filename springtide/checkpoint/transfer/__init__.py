"""Transfers of checkpoint files: uploads, reads from other hosts, shared disks."""
