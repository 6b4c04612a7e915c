"""Pure. Decisions about data workers: whether a job needs data workers, how many, of what size, and which job gets the
next cores."""
