"""Topics of a Kafka broker as streams, through confluent-kafka (the extra `kafka`).

address.py parses a URL, stream.py queries partitions and bounds, reader.py reads through librdkafka.py, writer.py
appends. There are no consumer groups: the master assigns partitions, and the job's checkpoints record the trained
offsets. Offsets committed to the broker are for monitoring only, and never read.
"""
