"""Which worker trains which sample, and what its cache sends and keeps."""
