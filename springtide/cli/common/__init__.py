"""Code shared by commands: options, job selection, exit codes, rendering."""
