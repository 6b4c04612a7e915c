"""Topics of a Kafka broker as streams, through confluent-kafka (the extra `kafka`).

Walk: address.py (what a URL says; options.py, what of it librdkafka knows) → stream.py (partitions and bounds) →
reader.py, over librdkafka.py, which makes records of messages; and writer.py. No consumer groups: the master assigns
partitions, and what is trained is known by the job's own checkpoints, so an offset that the broker keeps for us is for
others to look at, and never read.
"""
