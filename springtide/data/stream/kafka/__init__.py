"""Topics of a Kafka broker as streams, read through confluent-kafka (the extra `kafka`).

Springtide uses no consumer groups: the master assigns partitions, and the job's checkpoints record the trained offsets.
Offsets committed to the broker are for monitoring only, and Springtide never reads them.
"""
