"""What commands share: options, job selection, exit codes, rendering."""
