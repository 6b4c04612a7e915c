"""Commands that try things out: `plan`, `simulate`, `explain-split`, `bench`, `reproduce`."""
