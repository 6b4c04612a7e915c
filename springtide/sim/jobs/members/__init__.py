"""Virtual members of a job: master, servers, workers."""
