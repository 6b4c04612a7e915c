"""State that all parts of the master share: journal, record, progress."""
