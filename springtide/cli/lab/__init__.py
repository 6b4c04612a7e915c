"""Commands for experiments: `plan`, `simulate`, `explain-split`, `bench`, `reproduce`."""
