"""From a job as its user wrote it down to one that runs: read it, fill it in, hand it to a platform, find it again."""
