"""A stream in a worker: asking.py gets partitions, reading.py reads them, heads.py cuts batches, feed.py hands on."""
