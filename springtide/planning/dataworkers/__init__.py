"""Pure. Decides about data workers: whether a job needs them, how many, of what size, and which job gets the next
cores."""
