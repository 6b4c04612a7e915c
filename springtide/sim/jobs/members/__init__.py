"""Virtual members of a job: master, servers and workers."""
