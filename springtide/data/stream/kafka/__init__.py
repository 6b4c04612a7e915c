"""Topics of a Kafka broker as streams, through confluent-kafka (the extra `kafka`).

Walk: address.py parses a URL, stream.py asks for partitions and bounds, reader.py reads over librdkafka.py, writer.py
appends. There are no consumer groups: the master assigns partitions, and the job's checkpoints know what is trained. An
offset that the broker keeps for us is for monitoring only and never read.
"""
